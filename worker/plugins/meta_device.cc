#include "worker/plugins/meta_device.h"

#include <torch/library.h>

namespace muster::plugins {
namespace {

constexpr c10::DispatchKey kRedirects = c10::DispatchKey::TESTING_ONLY_GenericMode;  // nothing else uses it

void Redirect(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "device") (*stack)[first + i] = c10::Device(c10::kMeta);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kRedirects);
  op.callBoxed(stack);
}

// Once for the process; without a guard no operator comes here.
void RegisterFallback() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kRedirects, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&Redirect>());
    return made;
  }();
  (void)library;
}

}  // namespace

OnMetaDevice::OnMetaDevice() : redirected_((RegisterFallback(), kRedirects)) {}

}  // namespace muster::plugins
