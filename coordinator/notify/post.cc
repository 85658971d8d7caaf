#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/file/read_file.h"
#include "coordinator/notify/send.h"
#include "coordinator/outbound/http.h"

namespace muster::notify {
std::string SignatureOf(const std::string& secret, const std::string& id, int64_t timestamp, const std::string& body) {
  absl::string_view text = secret;
  std::string key = secret;
  if (absl::ConsumePrefix(&text, "whsec_") && !absl::Base64Unescape(text, &key)) key = secret;
  const std::string content = absl::StrCat(id, ".", timestamp, ".", body);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(content.data()),
       content.size(), digest, &size);
  return absl::StrCat("v1,", absl::Base64Escape(absl::string_view(reinterpret_cast<char*>(digest), size)));
}

absl::Status PostNotice(const Webhook& webhook, absl::Duration timeout, const Notice& notice,
                        const absl::Notification& stop) {
  // The status says enough, whatever the body is and whether it comes.
  outbound::HttpRequest request{.url = webhook.url,
                                .ca_file = webhook.ca_file,
                                .body = BodyOf(notice),
                                .timeout = timeout,
                                .most_reply_bytes = 0};
  const int64_t timestamp = absl::ToUnixSeconds(absl::Now());
  request.fields = {{"webhook-id", notice.id}, {"webhook-timestamp", absl::StrCat(timestamp)}};
  if (!webhook.secret_file.empty()) {
    // Read each time, so that a new secret needs no restart.
    absl::StatusOr<std::string> secret = ReadPrivateFile(webhook.secret_file);
    if (!secret.ok()) return absl::UnavailableError(secret.status().message());
    request.fields.emplace_back("webhook-signature", SignatureOf(std::string(absl::StripAsciiWhitespace(*secret)),
                                                                 notice.id, timestamp, request.body));
  }
  const absl::StatusOr<outbound::HttpReply> reply = outbound::Send(request, stop);
  if (!reply.ok()) return reply.status();
  if (reply->status / 100 == 2) return absl::OkStatus();
  const std::string message = absl::StrCat("the receiver answered with status ", reply->status);
  if (reply->status == 400 || reply->status == 413 || reply->status == 422) return absl::InvalidArgumentError(message);
  return absl::UnavailableError(message);
}

}  // namespace muster::notify
