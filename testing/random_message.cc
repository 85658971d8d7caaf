#include "testing/random_message.h"

#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDeepest = 6;
constexpr size_t kMostBytes = size_t{6} << 20;  // servers take 8 MiB at most

}  // namespace

std::string RandomMessages::Text() {
  if (Below(2) == 0 && !words_.empty()) return Word();
  if (Below(8) == 0) return "";
  std::string text;
  const uint64_t size = Below(8) == 0 ? Below(5000) : 1 + Below(24);
  constexpr const char* kPieces[] = {"a",  "0",  "-", ".",  "..",      "/",  "%", "{job}",
                                     "\n", "\t", "é", "日", "\x1b[2J", "\"", "'", " "};
  for (uint64_t i = 0; i < size; ++i) text += kPieces[Below(std::size(kPieces))];
  if (text[0] == '/') text[0] = '_';
  if (Below(50) == 0) text += '\xff';  // no UTF-8: not even parsed
  return text;
}

uint64_t RandomMessages::Number() {
  constexpr uint64_t kNumbers[] = {0,   1,    2,    3,      4,       7,          10,         64,
                                   100, 1000, 4096, 65'536, 1 << 20, 0x7fffffff, 0x80000000, 0xffffffff};
  switch (Below(6)) {
    case 0:
      return random_();
    case 1:
      return std::numeric_limits<uint64_t>::max() - Below(3);
    case 2:
      return uint64_t{1} << Below(64);
    default:
      return kNumbers[Below(std::size(kNumbers))];
  }
}

double RandomMessages::Real() {
  constexpr double kReals[] = {0,
                               -0.0,
                               1,
                               -1,
                               0.5,
                               1e-300,
                               1e300,
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  return kReals[Below(std::size(kReals))];
}

void RandomMessages::Set(Message& message, const FieldDescriptor& field, bool add, int depth) {
  const Reflection& reflection = *message.GetReflection();
  const auto set = [&](auto setter, auto adder, auto value) {
    add ? (reflection.*adder)(&message, &field, value) : (reflection.*setter)(&message, &field, value);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(Number()));
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::SetInt64, &Reflection::AddInt64, static_cast<int64_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<uint32_t>(Number()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::SetUInt64, &Reflection::AddUInt64, Number());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::SetDouble, &Reflection::AddDouble, Real());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::SetFloat, &Reflection::AddFloat, static_cast<float>(Real()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::SetBool, &Reflection::AddBool, Below(2) == 0);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto number = static_cast<int>(Below(8) == 0 ? Below(1000) : Below(field.enum_type()->value_count()));
      return set(&Reflection::SetEnumValue, &Reflection::AddEnumValue, number);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return add ? reflection.AddString(&message, &field, Text()) : reflection.SetString(&message, &field, Text());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(add ? *reflection.AddMessage(&message, &field) : *reflection.MutableMessage(&message, &field),
                  depth + 1);
  }
}

void RandomMessages::Fill(Message& message, int depth) {
  if (depth > kDeepest) return;
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const uint64_t share = 1 + Below(4);
  for (int i = 0; i < type.field_count(); ++i) {
    if (Below(4) >= share) continue;
    const FieldDescriptor& field = *type.field(i);
    const uint64_t times = field.is_repeated() ? Below(4) : 1;
    for (uint64_t n = 0; n < times; ++n) Set(message, field, field.is_repeated(), depth);
  }
}

// One field here, or of a message in it.
void RandomMessages::Change(Message& message, int depth) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  if (type.field_count() == 0 || depth > 2 * kDeepest) return;
  std::vector<const FieldDescriptor*> there;
  reflection.ListFields(message, &there);
  const bool any = there.empty() || Below(4) == 0;
  const FieldDescriptor& field =
      any ? *type.field(static_cast<int>(Below(type.field_count()))) : *there[Below(there.size())];
  const bool inside = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (inside && !field.is_repeated() && Below(8) != 0) {
    return Change(*reflection.MutableMessage(&message, &field), depth + 1);
  }
  if (inside && field.is_repeated() && reflection.FieldSize(message, &field) > 0 && Below(8) != 0) {
    const int at = static_cast<int>(Below(reflection.FieldSize(message, &field)));
    return Change(*reflection.MutableRepeatedMessage(&message, &field, at), depth + 1);
  }
  if (Below(5) == 0) return reflection.ClearField(&message, &field);
  Set(message, field, field.is_repeated(), depth);
}

// One field gets megabytes: text, or tens of thousands of values.
void RandomMessages::Enlarge(Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int tries = 0; tries < 20 && type.field_count() > 0; ++tries) {
    const FieldDescriptor& field = *type.field(static_cast<int>(Below(type.field_count())));
    if (field.is_repeated()) {
      const uint64_t times = 1 + Below(field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? 20'000 : 100'000);
      for (uint64_t n = 0; n < times; ++n) Set(message, field, /*add=*/true, kDeepest);
      return;
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      return reflection.SetString(&message, &field, std::string(1 + Below(kMostBytes - 1000), 'x'));
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return Enlarge(*reflection.MutableMessage(&message, &field));
    }
  }
}

void RandomMessages::Damage(std::string& bytes) {
  for (uint64_t edits = 1 + Below(6); edits > 0 && !bytes.empty(); --edits) {
    const size_t at = Below(bytes.size());
    switch (Below(4)) {
      case 0:
        bytes[at] = static_cast<char>(random_());
        break;
      case 1:
        bytes.erase(at, 1 + Below(8));
        break;
      case 2:
        bytes.insert(at, std::string(1 + Below(8), static_cast<char>(random_())));
        break;
      default:
        bytes.resize(at);
    }
  }
}

// Field 20,000 and up as a number, and as nested groups of length.
void RandomMessages::AddUnknown(std::string& bytes) {
  const auto varint = [&](uint64_t n) {
    for (; n >= 0x80; n >>= 7) bytes += static_cast<char>(n | 0x80);
    bytes += static_cast<char>(n);
  };
  for (uint64_t n = 1 + Below(20); n > 0; --n) {
    const bool text = Below(2) == 0;
    varint((20'000 + Below(100)) << 3 | (text ? 2 : 0));
    varint(text ? 5 : random_());
    if (text) bytes += "12345";
  }
}

std::string RandomMessages::Bytes(const google::protobuf::Descriptor& type, const Message* sample) {
  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<Message> message(factory.GetPrototype(&type)->New());
  if (sample != nullptr && Below(2) == 0) {
    (void)message->ParseFromString(sample->SerializeAsString());
    for (uint64_t changes = Below(4); changes > 0; --changes) Change(*message, 0);
  } else {
    Fill(*message, 0);
  }
  if (Below(40) == 0) Enlarge(*message);
  std::string bytes = message->SerializePartialAsString();
  if (Below(8) == 0) AddUnknown(bytes);
  if (Below(8) == 0) Damage(bytes);
  if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
  return bytes;
}

grpc::Status CallAnything(const std::shared_ptr<grpc::Channel>& channel,
                          const google::protobuf::MethodDescriptor& method, const std::string& token,
                          const std::vector<std::string>& messages, absl::Duration deadline, int most_replies) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  rpc::AddCallMetadata(token, context);
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(
      &context, absl::StrCat("/", std::string(method.service()->full_name()), "/", std::string(method.name())), &queue);
  call->StartCall(nullptr);
  bool open = next();
  for (size_t i = 0; open && i < messages.size(); ++i) {
    const grpc::Slice bytes(messages[i]);
    call->Write(grpc::ByteBuffer(&bytes, 1), nullptr);
    open = next();
  }
  if (open) {
    call->WritesDone(nullptr);
    next();
  }
  grpc::ByteBuffer ignored;
  for (int replies = 0;; ++replies) {
    call->Read(&ignored, nullptr);
    if (!next()) break;
    if (replies == most_replies) context.TryCancel();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return status;
}

}  // namespace muster
