// The files of the web page, embedded into the program at build time (embed.py).
#pragma once

#include <string_view>

namespace muster::web {

struct Asset {
  std::string_view name;  // "app.js"
  std::string_view type;  // "text/javascript; charset=utf-8"
  std::string_view etag;  // "\"4f0c...\""
  std::string_view bytes;
};

// nullptr: there is none of that name.
const Asset* FindAsset(std::string_view name);

}  // namespace muster::web
