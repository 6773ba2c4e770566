#!/usr/bin/env python3
"""Three events as TensorBoard's own classes encode and frame them -> tests/data/optimizers/events.golden; and reads a
file of ours back where one is named. Needs tensorboard."""
import pathlib
import sys

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

if len(sys.argv) > 1:
    for event in EventFileLoader(sys.argv[1]).Load():
        print(event)
    sys.exit()

events = [Event(wall_time=1.5, step=0, file_version="brain.Event:2"),
          Event(wall_time=2.5, step=300, session_log=SessionLog(status=SessionLog.START)),
          Event(wall_time=3.5, step=301, summary=Summary(value=[Summary.Value(tag="train/loss", simple_value=2.25),
                                                                Summary.Value(tag="lr", simple_value=1e-3)]))]
target = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "optimizers" / "events.golden"
with open(target, "wb") as out:
    writer = RecordWriter(out)
    for event in events:
        writer.write(event.SerializeToString())
    writer.flush()
