#include "coordinator/web/watch_stream.h"

#include <gtest/gtest.h>

namespace muster::web {
namespace {

HttpRequest Asking(std::map<std::string, std::string> query, const std::string& last_id = "") {
  HttpRequest request;
  request.query = std::move(query);
  if (!last_id.empty()) request.fields["last-event-id"] = last_id;
  return request;
}

TEST(ChannelsOf, APlainCursorIsOfOneWatch) {
  const std::vector<Channel> all =
      ChannelsOf(Asking({{"events", "1"}, {"logs", "1"}, {"cursor", "c1-7"}}), "j").value();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "");
  EXPECT_TRUE(all[0].request.follow() && all[0].request.events() && all[0].request.logs());
  EXPECT_FALSE(all[0].request.metrics());
  EXPECT_EQ(all[0].request.cursor(), "c1-7");
  EXPECT_EQ(all[0].request.job(), "j");
  const std::vector<Channel> tail = ChannelsOf(Asking({{"tail", "0"}}), "").value();
  EXPECT_TRUE(tail[0].request.events()) << "of all jobs: state events only";
  EXPECT_TRUE(tail[0].request.has_tail());
  EXPECT_EQ(ChannelsOf(Asking({{"cursor", "c1-7"}, {"tail", "3"}}, "c1-9"), "j").value()[0].request.cursor(), "c1-9")
      << "what the browser has seen since";
}

TEST(ChannelsOf, EachKindMayHaveAPositionOfItsOwn) {
  const std::map<std::string, std::string> kinds = {{"events", "1"}, {"metrics", "1"}, {"logs", "1"}, {"rank", "3"}};
  const std::vector<Channel> channels = ChannelsOf(Asking(kinds, "logs:c1-5,events:c1-9"), "j").value();
  ASSERT_EQ(channels.size(), 3u);
  const struct {
    const char* name;
    const char* cursor;
    bool events, metrics, logs;
  } kWanted[] = {{"events", "c1-9", true, false, false},
                 {"metrics", "", false, true, false},
                 {"logs", "c1-5", false, false, true}};
  for (size_t i = 0; i < 3; ++i) {
    const WatchRequest& request = channels[i].request;
    EXPECT_EQ(channels[i].name, kWanted[i].name);
    EXPECT_EQ(request.cursor(), kWanted[i].cursor);
    EXPECT_EQ(request.events(), kWanted[i].events);
    EXPECT_EQ(request.metrics(), kWanted[i].metrics);
    EXPECT_EQ(request.logs(), kWanted[i].logs);
    EXPECT_EQ(request.rank(), 3u);
    EXPECT_FALSE(request.has_tail()) << "an empty position is the beginning";
  }
  EXPECT_EQ(ChannelsOf(Asking({{"logs", "1"}, {"cursor", "events:c1-9,logs:"}}), "j").value().size(), 1u);
}

TEST(ChannelsOf, WhatIsMalformedIsRefused) {
  for (const auto& query : std::vector<std::map<std::string, std::string>>{{{"rank", "x"}},
                                                                           {{"tail", "-1"}},
                                                                           {{"logs", "1"}, {"cursor", "lines:c1-9"}},
                                                                           {{"logs", "1"}, {"cursor", "logs:c1-9,"}},
                                                                           {{"cursor", "logs:c1-9"}},
                                                                           {{"logs", "1"}, {"cursor", ":"}}}) {
    EXPECT_EQ(ChannelsOf(Asking(query), "j").status().code(), absl::StatusCode::kInvalidArgument)
        << query.begin()->first << "=" << query.begin()->second;
  }
}

}  // namespace
}  // namespace muster::web
