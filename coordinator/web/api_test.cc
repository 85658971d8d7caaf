#include "coordinator/web/api.h"

#include <gtest/gtest.h>

namespace muster::web {
namespace {

// Messages quote what a caller has sent.
TEST(JsonText, IsJsonWhateverTheText) {
  EXPECT_EQ(JsonText("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(JsonText("line\n\x1b[31m</script>\x7f"), "\"line\\u000a\\u001b[31m\\u003c/script>\\u007f\"");
  EXPECT_EQ(JsonText("\xc3\xa9\xe2\x82\xac"), "\"\xc3\xa9\xe2\x82\xac\"");
  EXPECT_EQ(JsonText("a\xff\xc3"), "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace muster::web
