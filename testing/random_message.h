// Random messages of any protobuf type, found by reflection, and calls that send them to any method: for servers that
// must survive whatever a client sends.
//
//   RandomMessages messages(seed, {"job-1", "node-1"});
//   const std::string request = messages.Bytes(*method->input_type(), &sample);
//   const grpc::Status status = CallAnything(channel, *method, "", {request}, absl::Seconds(1));
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

// The same seed gives the same messages. Not thread-safe.
class RandomMessages {
 public:
  // `words`: strings that mean something to the server: ids, paths. No other string begins like a path, or with 'z', so
  // that what a test calls "z..." is not hit by an accidental prefix.
  RandomMessages(uint64_t seed, std::vector<std::string> words) : random_(seed), words_(std::move(words)) {}

  // One in serialized form: with random values in random fields; now and then with fields that no one knows, with
  // damaged bytes, or with megabytes in one field. `sample`, if any, is changed in a few fields instead, about every
  // other time.
  std::string Bytes(const google::protobuf::Descriptor& type, const google::protobuf::Message* sample = nullptr);

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  const std::string& Word() { return words_[Below(words_.size())]; }

 private:
  void Fill(google::protobuf::Message& message, int depth);
  void Change(google::protobuf::Message& message, int depth);
  void Set(google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field, bool add, int depth);
  void Enlarge(google::protobuf::Message& message);
  void Damage(std::string& bytes);
  void AddUnknown(std::string& bytes);
  std::string Text();
  uint64_t Number();
  double Real();

  std::mt19937_64 random_;
  const std::vector<std::string> words_;
};

// Calls the method, with these bytes as its messages, and reads at most `most_replies`, then cancels. Returns the
// status; DEADLINE_EXCEEDED after `deadline`.
grpc::Status CallAnything(const std::shared_ptr<grpc::Channel>& channel,
                          const google::protobuf::MethodDescriptor& method, const std::string& token,
                          const std::vector<std::string>& messages, absl::Duration deadline, int most_replies = 20);

}  // namespace muster
