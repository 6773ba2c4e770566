#include "report/heat_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "report/colors.h"
#include "report/inspection_figures.h"
#include "report/markup.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMarkup = R"(
<style>
#heat .views label { margin-right: 18px; white-space: nowrap; }
#heat .map { display: flex; max-height: 76vh; overflow: auto; margin-top: 8px; border: 1px solid var(--line); }
#heat .names { position: sticky; left: 0; z-index: 1; background: var(--card); padding: 34px 8px 0 8px; text-align: right; }
#heat .names div { height: 14px; font: 11px/14px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
#heat .key { display: flex; align-items: center; gap: 8px; margin: 8px 0; font-size: 13px; color: var(--soft); }
#heat .key i { display: inline-block; width: 200px; height: 10px; }
#tip { position: fixed; display: none; pointer-events: none; z-index: 2; padding: 6px 9px; white-space: pre; font-size: 13px;
       background: var(--ink); color: var(--ground); border-radius: 4px; }
</style>
<div id="heat">
<div class="views"></div>
<div class="key"><span class="low"></span><i></i><span class="high"></span><span class="said"></span></div>
<div class="map"><div class="names"></div><canvas></canvas></div>
<div id="tip"></div>
<noscript>This map needs JavaScript; the heatmap files beside this page do not.</noscript>
</div>
)";

// Draws what heat-data holds; text of the model goes through textContent only.
constexpr std::string_view kScript = R"(
(() => {
  const data = JSON.parse(document.getElementById('heat-data').textContent);
  const heat = document.getElementById('heat'), tip = document.getElementById('tip');
  const canvas = heat.querySelector('canvas'), pen = canvas.getContext('2d');
  const top = 34, gap = 20, layers = data.layers, rows = data.labels.length;
  const cell = 14, wide = Math.max(cell, Math.min(44, Math.floor(760 / (2 * layers))));
  const width = 2 * layers * wide + gap + 10, height = top + rows * cell + 6;
  const left = unit => (unit % 2) * (layers * wide + gap) + (unit >> 1) * wide + 4;
  const views = data.scores ? [['score', 'score'], ['within', 'score within its unit'], ['ran', 'ran or skipped']]
                            : [['ran', 'ran or skipped']];
  let view = views[0][0];
  const ranges = [];
  for (let unit = 0; data.scores && unit !== 2 * layers; ++unit) {
    let low = Infinity, high = -Infinity;
    data.scores.forEach(row => {
      if (row[unit] === null) return;
      low = Math.min(low, row[unit]);
      high = Math.max(high, row[unit]);
    });
    ranges.push([low, high]);
  }
  const color = share => data.ramp[Math.round(Math.max(0, Math.min(1, share)) * (data.ramp.length - 1))];
  const shareOf = (row, unit) => {
    if (view === 'ran') return data.ran[row][unit] === '1' ? 1 : 0;
    const value = data.scores[row][unit], [low, high] = view === 'score' ? data.range : ranges[unit];
    return value === null ? null : high > low ? (value - low) / (high - low) : 1;
  };
  const draw = () => {
    const scale = Math.min(2, window.devicePixelRatio || 1), style = getComputedStyle(document.body);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = width + 'px';
    canvas.style.height = height + 'px';
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = style.color;
    pen.textAlign = 'center';
    pen.font = '12px sans-serif';
    pen.fillText('attention', layers * wide / 2 + 4, 12);
    pen.fillText('FFN', layers * wide * 1.5 + gap + 4, 12);
    pen.font = '10px sans-serif';
    for (let unit = 0; unit !== 2 * layers; ++unit)
      if (wide > 20 || (unit >> 1) % 5 === 0) pen.fillText(unit >> 1, left(unit) + wide / 2, 28);
    for (let row = 0; row !== rows; ++row) for (let unit = 0; unit !== 2 * layers; ++unit) {
      const share = shareOf(row, unit), x = left(unit), y = top + row * cell;
      pen.fillStyle = share === null ? 'rgba(128,128,128,0.15)' : color(share);
      pen.fillRect(x, y, wide - 1, cell - 1);
      if (view === 'ran' || data.ran[row][unit] === '1') continue;
      pen.strokeStyle = share === null || share > 0.5 ? '#000' : '#fff';
      pen.beginPath();
      pen.moveTo(x + 3, y + 3);
      pen.lineTo(x + wide - 4, y + cell - 4);
      pen.stroke();
    }
    const range = view === 'score' ? data.range.map(v => v.toPrecision(4))
                : view === 'within' ? ['lowest of its unit', 'highest of its unit'] : ['skipped', 'ran'];
    heat.querySelector('.low').textContent = range[0];
    heat.querySelector('.high').textContent = range[1];
    heat.querySelector('.said').textContent = view === 'ran' ? '' : '(a stroke through a cell: the token skipped this unit)';
  };
  heat.querySelector('.key i').style.background = 'linear-gradient(90deg,' + data.ramp.join(',') + ')';
  data.labels.forEach(label => {
    const name = document.createElement('div');
    name.textContent = label;
    heat.querySelector('.names').append(name);
  });
  views.forEach(([key, text]) => {
    const label = document.createElement('label'), radio = document.createElement('input');
    radio.type = 'radio';
    radio.name = 'view';
    radio.checked = key === view;
    radio.onchange = () => { view = key; draw(); };
    label.append(radio, ' ' + text);
    heat.querySelector('.views').append(label);
  });
  canvas.onmouseleave = () => { tip.style.display = 'none'; };
  canvas.onmousemove = event => {
    const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - top) / cell);
    const x = event.clientX - box.left - 4, ffn = x >= layers * wide + gap;
    const layer = Math.floor((ffn ? x - layers * wide - gap : x) / wide), unit = 2 * layer + (ffn ? 1 : 0);
    const inside = data.labels[row] !== undefined && layer >= 0 && layers > layer;
    tip.style.display = inside ? 'block' : 'none';
    if (!inside) return;
    const score = data.scores && data.scores[row][unit] !== null ? 'score ' + data.scores[row][unit] : '';
    const bound = data.thresholds ? 'threshold ' + data.thresholds[unit] : '';
    tip.textContent = [data.labels[row] + '  (token ' + row + ', ' + data.classes[row] + ')',
                       'layer ' + layer + (ffn ? ' FFN: ' : ' attention: ') + (data.ran[row][unit] === '1' ? 'ran' : 'skipped'),
                       score, bound, data.notes[row]].filter(line => line).join('\n');
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
  };
  window.matchMedia('(prefers-color-scheme: dark)').onchange = draw;
  draw();
})();
)";

// Four digits: what hovering needs, a third of the bytes.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.4g}", value));
}

Json heat_data(const Inspection& in, const InspectionStats& stats) {
  const Trace& trace = in.trace;
  const size_t rows = std::min(stats.rows(), kTokensInPage);
  Json data;
  data["layers"] = stats.layers();
  const auto [low, high] = value_range(stats);
  data["range"] = {low, high};
  for (int i = 0; i <= 32; ++i) data["ramp"].push_back(hex(ramp(i / 32.0)));
  data["scores"] = nullptr;
  for (size_t r = 0; r < rows; ++r) {
    data["labels"].push_back(stats.label(r));
    data["classes"].push_back(name_of(stats.token_class(r)));
    const std::string surprise = r > 0 ? fmt::format(", log-probability {:.2f}", in.logprobs[r]) : "";
    data["notes"].push_back(fmt::format("{:g} of {} layers{}", trace.depth(r), stats.layers(), surprise));
    std::string ran;
    Json scores = Json::array();
    for (int64_t u = 0; u < trace.units(); ++u) {
      ran += trace.ran(r, u) ? '1' : '0';
      if (stats.has_scores()) scores.push_back(short_number(trace.score(r, u)));
    }
    data["ran"].push_back(ran);
    if (stats.has_scores()) data["scores"].push_back(scores);
  }
  data["thresholds"] = nullptr;
  for (const float threshold : in.thresholds) data["thresholds"].push_back(short_number(threshold));
  return data;
}

}  // namespace

std::string heat_section(const Inspection& inspection, const InspectionStats& stats) {
  const std::string data = heat_data(inspection, stats).dump(-1, ' ', false, Json::error_handler_t::replace);
  return fmt::format(
      "{}<script type=\"application/json\" id=\"heat-data\">{}</script>\n<script>{}</script>\n", kMarkup,
      script_json(data), kScript);
}

}  // namespace fathom
