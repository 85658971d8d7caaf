// Decodes arbitrary bytes as an outbox segment: records are found up to the first torn or damaged one, each lies within
// the bytes, and each survives a round trip.
#include <cstdio>
#include <cstdlib>

#include "testing/fuzz.h"
#include "worker/rundir/outbox_format.h"

namespace muster::fuzz {
namespace {

using rundir::DecodeRecord;
using rundir::EncodeRecord;
using rundir::Found;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

Record Sample(int number) {
  Record record;
  record.set_sequence(static_cast<uint64_t>(number) + 1);
  if (number % 3 == 0) record.mutable_running();
  if (number % 3 == 1) {
    record.mutable_metrics()->set_step(static_cast<uint64_t>(number));
    record.mutable_metrics()->set_loss(0.5);
  }
  if (number % 3 == 2) record.mutable_finished()->set_step(static_cast<uint64_t>(number));
  return record;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::string segment;
  for (int i = 0; i < 6; ++i) segment += EncodeRecord(Sample(i));
  return {segment, EncodeRecord(Sample(0)), EncodeRecord(Sample(1)), segment + std::string(64, '\0'),
          segment.substr(0, segment.size() - 3)};
}

std::vector<std::string> Words() {
  return {std::string(4, '\0'),
          std::string(1, '\0'),
          "\xFF\xFF\xFF\xFF",
          "\xFF\xFF\xFF\x7F",
          EncodeRecord(Sample(1)),
          "\x08\x01",
          "\x12",
          "\x1A\xFF\xFF\xFF\xFF\x0F"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (true) {
    Record record;
    size_t taken = 0;
    const Found found = DecodeRecord(rest, record, taken);
    if (found != Found::kRecord) {
      if (found == Found::kEnd && !rest.empty()) Fail("an end before the end");
      return 0;
    }
    if (taken <= rundir::kRecordHeaderBytes || taken > rest.size()) Fail("a record that is not within its bytes");
    Record again;
    size_t size_again = 0;
    const std::string encoded = EncodeRecord(record);
    if (DecodeRecord(encoded, again, size_again) != Found::kRecord || size_again != encoded.size()) {
      Fail("what was written is not found");
    }
    if (again.SerializeAsString() != record.SerializeAsString()) Fail("what was written is found as something else");
    rest.remove_prefix(taken);
  }
}
