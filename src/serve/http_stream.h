// The bytes of one connection, plain or under TLS, with its timer; no HTTP here. The only users of sockets
// are http_stream.cc and http_loop.cc, over Asio.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "infer/fathom.h"

namespace fathom {

class AcceptedSocket;  // serve/http_loop.h
class HttpLoop;        // the same
struct TlsContext;     // in http_stream.cc

// All calls are made on the stream's thread (where its callbacks run, one after the other), but for post().
// After close() no callback comes but those of post().
class ByteStream {
 public:
  using Done = std::function<void(std::size_t bytes)>;  // 0: the peer has gone

  virtual ~ByteStream() = default;
  virtual void start(std::function<void(bool ok)> done) = 0;  // TLS's handshake
  // Reads, or writes, at least one byte. At most one of each may be under way; the memory must stay until
  // then.
  virtual void read(char* into, std::size_t most, Done done) = 0;
  virtual void write(std::string_view bytes, Done done) = 0;
  virtual bool peer_closed() const = 0;  // also while bytes of the peer have not been read
  virtual void finish() = 0;             // nothing more is written; the peer may still write
  virtual void close() = 0;
  virtual void reset() = 0;  // closes so that the peer sees an error, not an end
  virtual void post(
      std::function<void()> call) = 0;  // from any thread; does nothing once the loop has stopped
  virtual void call_at(Moment when, std::function<void()> call) = 0;  // in place of an earlier one
};

// Takes the socket. Without `tls` the stream is plain.
std::shared_ptr<ByteStream> open_stream(std::shared_ptr<HttpLoop> loop, AcceptedSocket& socket,
                                        std::shared_ptr<TlsContext> tls);

// TLS 1.2 or later with this certificate chain and key, both PEM. Errors are UserErrors that name the file.
std::shared_ptr<TlsContext> load_tls(const std::string& certificate_file, const std::string& key_file);

}  // namespace fathom
