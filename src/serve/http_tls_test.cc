#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.h"
#include "serve/http_rig_test.h"
#include "serve/http_server.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;

// A folder with a self-signed certificate and its key, made now.
class Certificate {
 public:
  Certificate() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom_tls_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* x509 = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), 0);
    X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
    X509_set_pubkey(x509, key);
    X509_NAME* subject = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(x509, subject);
    X509_sign(x509, key, EVP_sha256());
    std::FILE* file = std::fopen(certificate().c_str(), "w");
    PEM_write_X509(file, x509);
    std::fclose(file);
    file = std::fopen(this->key().c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
    X509_free(x509);
    EVP_PKEY_free(key);
  }
  ~Certificate() { std::filesystem::remove_all(folder_); }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  std::string certificate() const { return folder_ + "/cert.pem"; }
  std::string key() const { return folder_ + "/key.pem"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int most_version = TLS1_3_VERSION) : plain_(port) {
    context_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context_, 0);
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_, most_version);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, plain_.socket());
    const timeval patience{.tv_sec = kPatience / 1000, .tv_usec = 0};
    setsockopt(plain_.socket(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  TestClient& plain() { return plain_; }
  void send(const std::string& bytes) { SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())); }
  std::string until(const std::string& text) {
    while (got_.find(text) == std::string::npos && receive()) {
    }
    return std::exchange(got_, {});
  }
  // Everything up to the end, which must be TLS's own and not only the socket's.
  std::string rest() {
    while (receive()) {
    }
    EXPECT_TRUE(SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN);
    return std::exchange(got_, {});
  }

 private:
  bool receive() {
    char bytes[4096];
    const int n = SSL_read(ssl_, bytes, sizeof bytes);
    if (n > 0) got_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  TestClient plain_;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  std::string got_;
};

HttpServerOptions with_tls(const Certificate& files) {
  HttpServerOptions options;
  options.tls_certificate = files.certificate();
  options.tls_key = files.key();
  return options;
}

TEST(HttpTls, AnswersAndStreams) {
  const Certificate files;
  HttpRig rig(with_tls(files));
  TlsClient client(rig.port());
  ASSERT_TRUE(client.connected());
  client.send(http_get("/echo?a"));
  EXPECT_TRUE(client.until("GET a ").ends_with("GET a "));
  client.send(http_post("/stream", "{}"));
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "");
  const std::string large(1 << 20, 'x');
  reply->write(large);
  reply->write("end");
  reply->end();
  const std::string stream = client.until("0\r\n\r\n");
  EXPECT_NE(stream.find(large), std::string::npos);
  EXPECT_TRUE(stream.ends_with("3\r\nend\r\n0\r\n\r\n"));
  client.send("GET /echo?b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.rest().ends_with("GET b "));
}

TEST(HttpTls, ReadsLargeBodies) {
  const Certificate files;
  HttpRig rig(with_tls(files));
  TlsClient client(rig.port());
  const std::string body(1 << 20, 'y');
  client.send(http_post("/echo", body + "end"));
  EXPECT_TRUE(client.until("end").ends_with(body + "end"));
}

TEST(HttpTls, TellsWhenTheClientGoes) {
  const Certificate files;
  HttpRig rig(with_tls(files));
  HttpEvent gone;
  std::shared_ptr<HttpReply> reply;
  {
    TlsClient client(rig.port());
    client.send(http_get("/wait"));
    reply = rig.reply();
    reply->on_gone([&] { gone.happen(); });
  }
  EXPECT_TRUE(gone.wait());
}

TEST(HttpTls, NeedsVersion12) {
  const Certificate files;
  HttpRig rig(with_tls(files));
  EXPECT_TRUE(TlsClient(rig.port(), TLS1_2_VERSION).connected());
  EXPECT_FALSE(TlsClient(rig.port(), TLS1_1_VERSION).connected());
}

TEST(HttpTls, DropsWhoDoesNotSpeakIt) {
  const Certificate files;
  HttpServerOptions options = with_tls(files);
  options.request_time = 100ms;
  HttpRig rig(options);
  TestClient plain(rig.port()), silent(rig.port());
  plain.send(http_get("/echo"));
  EXPECT_EQ(plain.response().status, 0);
  EXPECT_TRUE(plain.ends());
  EXPECT_TRUE(silent.ends());
}

TEST(HttpTls, StopsInEveryState) {
  const Certificate files;
  HttpRig rig(with_tls(files));
  TestClient silent(rig.port());
  TlsClient waiting(rig.port());
  waiting.send(http_get("/wait"));
  rig.reply();
  rig.server->stop();
  EXPECT_TRUE(silent.ends());
  EXPECT_TRUE(waiting.plain().ends());
}

TEST(HttpTls, SaysWhichFileIsWrong) {
  const Certificate one, other;
  const auto error = [](const std::string& certificate, const std::string& key) -> std::string {
    try {
      HttpServerOptions options{.tls_certificate = certificate, .tls_key = key};
      HttpServer(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  const std::string missing = one.folder() + "/none.pem", text = one.folder() + "/text.pem";
  std::ofstream(text) << "text\n";
  EXPECT_EQ(error(one.certificate(), one.key()), "");
  EXPECT_EQ(error(missing, one.key()), "TLS: the certificate file " + missing + " cannot be read");
  EXPECT_EQ(error(one.certificate(), missing), "TLS: the key file " + missing + " cannot be read");
  EXPECT_EQ(error(one.certificate(), other.key()),
            "TLS: the key in " + other.key() + " does not belong to the certificate in " + one.certificate());
  EXPECT_TRUE(error(text, one.key()).starts_with("TLS: " + text + " holds no certificate in PEM form"));
  EXPECT_TRUE(
      error(one.certificate(), text).starts_with("TLS: " + text + " holds no private key in PEM form"));
}

}  // namespace
}  // namespace fathom
