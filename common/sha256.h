#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace muster {

// SHA-256 of bytes, as 64 lower-case hexadecimal digits.
std::string Sha256Hex(std::string_view bytes);

// The same, incrementally.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::string_view bytes);
  // Finishes the hash; call once.
  std::string FinishHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace muster
