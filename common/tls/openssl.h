// Ownership of OpenSSL's objects, and its errors. Only for the .cc files of this folder.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

namespace muster::tls {

template <auto free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using X509Object = std::unique_ptr<X509, Freer<X509_free>>;
using X509Request = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using SslContext = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using SslConnection = std::unique_ptr<SSL, Freer<SSL_free>>;

inline Bio BioOf(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

inline std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, size > 0 ? static_cast<size_t>(size) : 0);
}

// The newest error of this thread's OpenSSL queue, "no reason given" if none; clears the queue.
std::string TakeError();

}  // namespace muster::tls
