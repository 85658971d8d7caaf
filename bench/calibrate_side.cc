// One rank of bench/scaling.py: reads lines "N" from standard input, measures the inputs of the simulator's cost model
// N times, at the same time as the other ranks, and answers with one JSON line of the best values.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/file_key_value.h"
#include "bench/gemms.h"
#include "bench/model.h"
#include "bench/shape_options.h"
#include "models/inventory.h"
#include "worker/collectives/gloo.h"

namespace {

using namespace muster;

constexpr int64_t kArrayElements = 8 << 20;   // 32 MiB: more than a core's share of the caches
constexpr int64_t kBucketElements = 1 << 20;  // 4 MiB
constexpr int kBuckets = 8;
constexpr int64_t kPieceRows = 256;
constexpr int kPieces = 20;

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of this thread's processor time over a share of a core, as PacedOps has it.
double SecondsAt(double share, const std::function<void()>& work) {
  if (share >= 1) return SecondsOf(work);
  const auto used = [] {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double before = used();
  work();
  return (used() - before) / share;
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double FlopsOf(const bench::Dimensions& shape) {
  Model model;
  Gpt2& gpt2 = *model.mutable_gpt2();
  gpt2.set_layers(shape.layers), gpt2.set_heads(shape.heads), gpt2.set_width(shape.width);
  gpt2.set_vocabulary(shape.vocabulary), gpt2.set_context(shape.context);
  const auto inventory = models::MakeInventory(model);
  Check(inventory.status());
  double forward = 0;
  for (const Unit& unit : inventory->units()) forward += unit.forward_flops();
  return 3 * forward * shape.sequences;
}

// Each bucket by each collective that schedules use.
void MoveBuckets(collectives::Group& group, std::vector<at::Tensor>& buckets) {
  std::vector<std::unique_ptr<collectives::Work>> works;
  const int64_t each = kBucketElements / group.size();
  for (at::Tensor& bucket : buckets) {
    std::vector<collectives::RankShare> shares;
    for (int root = 0; root < group.size(); ++root) shares.push_back({bucket.narrow(0, root * each, each), root});
    works.push_back(group.AllReduce(bucket));
    Check(works.back()->Wait());
    works.push_back(group.ReduceShares(shares));
    Check(works.back()->Wait());
    works.push_back(group.BroadcastShares(shares));
    Check(works.back()->Wait());
  }
}

// One way, there and back again, between ranks that wait for it.
double MessageSeconds(collectives::Group& pair, at::Tensor& values) {
  constexpr int kThereAndBack = 20;
  const int other = 1 - pair.rank();
  return SecondsOf([&] {
           for (int i = 0; i < kThereAndBack; ++i) {
             if (pair.rank() == 0) Check(pair.Send(values, other)->Wait());
             Check(pair.Recv(values, other)->Wait());
             if (pair.rank() == 1) Check(pair.Send(values, other)->Wait());
           }
         }) /
         (2 * kThereAndBack);
}

struct Best {
  double gemms = std::numeric_limits<double>::infinity(), memory = gemms, buckets = gemms;
  double pieces = gemms, pieces_and_messages = gemms;
  double word = gemms, activation = gemms;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Dimensions shape;
  std::string folder;
  CLI::App app("One rank of bench/scaling.py that measures the machine");
  bench::AddShape(app, shape);
  app.add_option("--folder", folder, "where the ranks meet")->required();
  double core = 1;
  app.add_option("--share", core, "of a core, on which ranks compute");
  CLI11_PARSE(app, argc, argv);

  bench::FileKeyValue rendezvous(folder);
  auto group = collectives::MakeGloo({.rank = static_cast<int>(shape.rank),
                                      .size = static_cast<int>(shape.ranks),
                                      .name = "world",
                                      .host = "127.0.0.1"},
                                     rendezvous);
  Check(group.status());
  // Of the first two ranks, as a stage and the next one.
  std::unique_ptr<collectives::Group> pair;
  if (shape.ranks > 1 && shape.rank < 2) {
    auto joined = collectives::MakeGloo(
        {.rank = static_cast<int>(shape.rank), .size = 2, .name = "pair", .host = "127.0.0.1"}, rendezvous);
    Check(joined.status());
    pair = *std::move(joined);
  }
  at::Tensor word = at::ones({1}), activation = at::ones({shape.context, shape.width});
  const std::unique_ptr<bench::Gemms> gemms = bench::MakeGemms(shape);
  const at::Tensor a = at::ones({kArrayElements}), b = at::ones({kArrayElements});
  at::Tensor c = at::ones({kArrayElements}), scalar = at::ones({1});
  // A rank that waits for a message gets its core back only when others yield, so messages are timed between work.
  const at::Tensor left = at::ones({kPieceRows, shape.width}), right = at::ones({shape.width, 4 * shape.width});
  at::Tensor output = at::ones({kPieceRows, 4 * shape.width});
  const auto pieces = [&](bool messages) {
    for (int i = 0; i < kPieces; ++i) {
      at::mm_out(output, left, right);
      if (messages) Check((*group)->AllReduce(scalar)->Wait());
    }
  };
  std::vector<at::Tensor> buckets;
  for (int i = 0; i < kBuckets; ++i) buckets.push_back(at::ones({kBucketElements}));
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  for (int rounds = 0; std::cin >> rounds;) {
    Best best;
    const auto keep = [&](double& least, const std::function<void()>& work) {
      Check((*group)->Barrier());
      least = std::min(least, SecondsOf(work));
    };
    const auto keep_computed = [&](double& least, const std::function<void()>& work) {
      Check((*group)->Barrier());
      least = std::min(least, SecondsAt(core, work));
    };
    for (int i = 0; i < rounds; ++i) {
      keep_computed(best.gemms, [&] { gemms->Step(); });
      keep_computed(best.memory, [&] { at::add_out(c, a, b); });
      keep(best.buckets, [&] { MoveBuckets(**group, buckets); });
      keep(best.pieces, [&] { pieces(false); });
      keep(best.pieces_and_messages, [&] { pieces(true); });
      if (pair != nullptr) {
        best.word = std::min(best.word, MessageSeconds(*pair, word));
        best.activation = std::min(best.activation, MessageSeconds(*pair, activation));
      }
      for (at::Tensor& bucket : buckets) bucket.fill_(1);
    }
    // An all-reduce moves all but the own share into a rank twice, a gather and a reduction once each.
    const double share = static_cast<double>(shape.ranks - 1) / shape.ranks;
    nlohmann::json answer = {{"flops", FlopsOf(shape) / best.gemms},
                             {"memory_bytes_per_second", 3.0 * 4 * kArrayElements / best.memory},
                             {"link_bytes_per_second", 4 * share * 4 * kBucketElements * kBuckets / best.buckets},
                             {"message_seconds", std::max(0.0, best.pieces_and_messages - best.pieces) / kPieces}};
    if (pair != nullptr) {
      answer["word_seconds"] = best.word;
      answer["activation_seconds"] = best.activation;
      answer["activation_bytes"] = activation.nbytes();
    }
    std::cout << answer << std::endl;
  }
}
