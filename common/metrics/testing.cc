#include "common/metrics/testing.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {

std::string GetPage(const std::string& address, const std::string& path) {
  using boost::asio::ip::tcp;
  boost::asio::io_context context;
  boost::system::error_code error;
  tcp::socket socket(context);
  const size_t colon = address.rfind(':');
  const auto found = tcp::resolver(context).resolve(address.substr(0, colon), address.substr(colon + 1), error);
  if (!error) boost::asio::connect(socket, found, error);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  if (!error) boost::asio::write(socket, boost::asio::buffer(request), error);
  if (error) return "";
  std::string answer;
  boost::asio::read(socket, boost::asio::dynamic_buffer(answer), error);
  return absl::StartsWith(answer, "HTTP/1.1 200 ") ? answer.substr(answer.find("\r\n\r\n") + 4) : answer;
}

}  // namespace muster
