#include "worker/engine/kv_cache.h"

#include <algorithm>

namespace muster::engine {

absl::Span<const uint32_t> KvCache::Begin(absl::Span<const uint32_t> tokens, size_t units) {
  const bool more = done_ && kept_.size() == units && tokens.size() > tokens_.size() &&
                    std::equal(tokens_.begin(), tokens_.end(), tokens.begin());
  if (!more) Forget();
  kept_.resize(units);
  done_ = false;
  return tokens.subspan(tokens_.size());
}

void KvCache::Done(absl::Span<const uint32_t> computed) {
  tokens_.insert(tokens_.end(), computed.begin(), computed.end());
  done_ = true;
}

void KvCache::Forget() {
  tokens_.clear();
  kept_.clear();
  done_ = true;
}

}  // namespace muster::engine
