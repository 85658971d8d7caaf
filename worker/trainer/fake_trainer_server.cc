#include "worker/trainer/fake_trainer_server.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/checkpoint.h"
#include "common/instruction_set.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "proto/trainer_service.grpc.pb.h"
#include "strategies/compile.h"
#include "testing/wait.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/progress.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

[[noreturn]] void Broken(const std::string& what) {
  std::fprintf(stderr, "the test's bench is broken: %s\n", what.c_str());
  std::abort();
}

}  // namespace

struct FakeTrainerServer::State final : public Trainer::Service {
  grpc::Status Attach(grpc::ServerContext* context, const AttachRequest* request,
                      grpc::ServerWriter<Command>* writer) override {
    uint64_t sent = 0;
    absl::MutexLock lock(&mutex);
    ++attaches;
    if (refuse) return {grpc::StatusCode::FAILED_PRECONDITION, "versions do not fit"};
    while (!context->IsCancelled()) {
      if (sent != revision) {
        sent = revision;
        for (const auto& command : commands) writer->Write(command);
      }
      // Wakes up to check for cancellation, which is not signalled.
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return revision != sent; };
      mutex.AwaitWithTimeout(absl::Condition(&changed), absl::Milliseconds(5));
    }
    return grpc::Status::CANCELLED;
  }
  grpc::Status Report(grpc::ServerContext*, const ReportRequest* request, ReportReply* reply) override {
    absl::MutexLock lock(&mutex);
    if (contact) sent = request->sequence();
    reply->set_sent(sent);
    step = request->step();
    ++reports;
    return grpc::Status::OK;
  }

  std::string socket;
  std::unique_ptr<grpc::Server> server;
  mutable absl::Mutex mutex;
  std::vector<Command> commands ABSL_GUARDED_BY(mutex);
  uint64_t revision ABSL_GUARDED_BY(mutex) = 0;
  bool refuse ABSL_GUARDED_BY(mutex) = false;
  bool contact ABSL_GUARDED_BY(mutex) = false;
  uint64_t sent ABSL_GUARDED_BY(mutex) = 0;
  int attaches ABSL_GUARDED_BY(mutex) = 0;
  uint64_t step ABSL_GUARDED_BY(mutex) = 0;
  int reports ABSL_GUARDED_BY(mutex) = 0;
};

FakeTrainerServer::FakeTrainerServer(std::string socket) : state_(std::make_unique<State>()) {
  state_->socket = std::move(socket);
  Start();
}
FakeTrainerServer::~FakeTrainerServer() { Stop(); }
const std::string& FakeTrainerServer::socket() const { return state_->socket; }

void FakeTrainerServer::Start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", state_->socket), grpc::InsecureServerCredentials());
  builder.RegisterService(state_.get());
  state_->server = builder.BuildAndStart();
  if (state_->server == nullptr) Broken(absl::StrCat("cannot serve ", state_->socket));
}

void FakeTrainerServer::Stop() {
  if (state_->server == nullptr) return;
  state_->server->Shutdown(std::chrono::system_clock::now());
  state_->server.reset();
  unlink(state_->socket.c_str());
}

void FakeTrainerServer::Assign(const Assignment& assignment) {
  absl::MutexLock lock(&state_->mutex);
  state_->commands.clear();
  *state_->commands.emplace_back().mutable_assignment() = assignment;
  ++state_->revision;
}

void FakeTrainerServer::SendStop(bool checkpoint_first) {
  absl::MutexLock lock(&state_->mutex);
  muster::Stop& stop = *state_->commands.emplace_back().mutable_stop()->mutable_stop();
  stop.set_reason(END_REASON_CANCELLED);
  stop.set_checkpoint_first(checkpoint_first);
  ++state_->revision;
}

void FakeTrainerServer::Contact(bool contact) {
  absl::MutexLock lock(&state_->mutex);
  state_->contact = contact;
}
void FakeTrainerServer::RefuseVersions() {
  absl::MutexLock lock(&state_->mutex);
  state_->refuse = true;
}

int FakeTrainerServer::attaches() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->attaches;
}

uint64_t FakeTrainerServer::reported_step() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->step;
}

int FakeTrainerServer::reports() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->reports;
}

Process StartTrainer(std::vector<std::string> arguments, std::string log) {
  arguments.insert(arguments.begin(), "worker/trainer/muster-trainer");
  return Process(std::move(arguments), std::move(log));
}

Process::Process(std::vector<std::string> argv, std::string log) : log_(std::move(log)) {
  // As the worker daemon sets it, so that equal runs give equal bits.
  std::vector<std::string> environment = {"OMP_NUM_THREADS=1", "PATH=/usr/bin:/bin", "LANG=C",
                                          absl::StrCat("MKL_CBWR=", MklCodePath(FindInstructions()))};
  for (const char* name : {"MUSTER_FAILPOINTS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"}) {
    if (const char* const value = getenv(name); value != nullptr) {
      environment.push_back(absl::StrCat(name, "=", value));
    }
  }
  std::vector<char*> argv_pointers, environment_pointers;
  for (std::string& s : argv) argv_pointers.push_back(s.data());
  for (std::string& s : environment) environment_pointers.push_back(s.data());
  argv_pointers.push_back(nullptr);
  environment_pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, absl::StrCat(log_, ".out").c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, absl::StrCat(log_, ".err").c_str(), flags, 0600);
  const int error =
      posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, argv_pointers.data(), environment_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Broken(absl::StrCat("cannot start ", argv[0], ": error ", error));
}

Process::Process(Process&& other) noexcept
    : log_(std::move(other.log_)), pid_(std::exchange(other.pid_, -1)), exit_(other.exit_) {}

Process::~Process() {
  if (pid_ < 0 || exit_.has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Process::Reap() {
  if (exit_.has_value()) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

int Process::Wait(absl::Duration deadline) {
  if (!Eventually([&] { return Reap(); }, deadline)) {
    std::fprintf(stderr, "a process does not end; its log:\n%s\n", Log().c_str());
    return -1;
  }
  return *exit_;
}

void Process::Signal(int signal) { kill(pid_, signal); }
bool Process::Running() { return !Reap(); }
std::string Process::Output() const { return Slurp(absl::StrCat(log_, ".out")); }
std::string Process::Log() const { return Slurp(absl::StrCat(log_, ".err")); }

std::string Process::LastLine() const {
  const std::string log = Log();
  const std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(log, "\n"), '\n');
  return lines.back();
}

Bench::Bench() : worker_(Path("w.sock")) {
  // Not random: something that a model of this size learns.
  std::vector<uint16_t> tokens;
  const std::string text = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. ";
  for (int i = 0; i < 6000; ++i) tokens.push_back(static_cast<unsigned char>(text[(i + i / 700) % text.size()]));
  WriteTokens("train.bin", tokens);
  WriteTokens("val.bin", std::vector<uint16_t>(tokens.begin(), tokens.begin() + 1000));
}

std::string Bench::WriteTokens(const std::string& name, const std::vector<uint16_t>& tokens) const {
  std::ofstream(Path(name), std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  return Path(name);
}

JobSpec Bench::MakeJob() const {
  JobSpec spec;
  spec.set_name("small");
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_resources()->set_device(DEVICE_CPU);
  Train& train = *spec.mutable_train();
  Gpt2& model = *train.mutable_model()->mutable_gpt2();
  model.set_layers(2), model.set_heads(2), model.set_width(32), model.set_vocabulary(256), model.set_context(16);
  train.mutable_data()->set_tokens(Path("train.bin"));
  train.mutable_data()->set_order(DATA_ORDER_SHUFFLED);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(4);
  train.mutable_precision()->set_compute(DTYPE_FP32);
  Optimizer& optimizer = *train.mutable_optimizer();
  AdamW& adamw = *optimizer.mutable_adamw();
  adamw.set_beta1(0.9), adamw.set_beta2(0.95), adamw.set_eps(1e-8);
  optimizer.set_lr(3e-3);
  optimizer.set_weight_decay(0.1);
  optimizer.set_clip_norm(1.0);
  optimizer.mutable_lr_schedule()->mutable_cosine()->set_min_lr(3e-4);
  optimizer.mutable_lr_schedule()->set_warmup_steps(5);
  train.mutable_checkpoint()->set_path(Path("checkpoints"));
  train.mutable_checkpoint()->set_every_steps(10);
  train.mutable_checkpoint()->set_keep(2);
  train.set_steps(40);
  train.set_seed(1);
  return spec;
}

Assignment Bench::Assign(const JobSpec& spec, uint64_t generation, uint32_t world, uint32_t rank) const {
  const Inventory inventory = models::MakeInventory(spec.train()).value();
  const strategies::Layout layout =
      strategies::MakeLayout(spec.train(), inventory, strategies::AnyPlaces(world)).value();
  Assignment assignment;
  assignment.mutable_key()->set_job("small-x7f2");
  assignment.mutable_key()->set_generation(generation);
  assignment.mutable_key()->set_rank(rank);
  assignment.set_world(world);
  *assignment.mutable_role() = layout.roles[rank];
  assignment.set_device(DEVICE_CPU);
  assignment.set_cores(1);
  *assignment.mutable_spec() = spec;
  *assignment.mutable_table() = layout.table;
  assignment.set_schedule_digest(strategies::Compile(spec.train(), inventory, layout, rank).value().digest);
  return assignment;
}

void Bench::Publish(Assignment& assignment) const {
  assignment.clear_published();
  assignment.clear_resume_from();
  std::vector<checkpoint::StepName> steps = checkpoint::List(assignment.spec().train().checkpoint().path());
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    PublishedCheckpoint& published = *assignment.add_published();
    published.set_step(step->step);
    published.set_generation(step->generation);
    published.set_directory(step->Directory());
    *assignment.mutable_resume_from() = published;
  }
}

Process Bench::Start(const Assignment& assignment, const std::vector<std::string>& more) {
  fs::create_directories(RankDir(assignment));
  worker_.Assign(assignment);
  std::vector<std::string> arguments = {"run",
                                        "--socket",
                                        worker_.socket(),
                                        "--rank-dir",
                                        RankDir(assignment),
                                        "--job",
                                        assignment.key().job(),
                                        "--generation",
                                        absl::StrCat(assignment.key().generation()),
                                        "--rank",
                                        "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return StartTrainer(std::move(arguments), absl::StrCat(RankDir(assignment), "/log"));
}

std::string Bench::RankDir(const Assignment& assignment) const {
  const uint32_t rank = assignment.key().rank();
  return Path(absl::StrCat("rank-", assignment.key().generation(), rank == 0 ? "" : absl::StrCat("-", rank)));
}

std::vector<Record> Bench::Records(const Assignment& assignment) const {
  auto records = rundir::OutboxReader(RankDir(assignment)).Read(0, 1'000'000);
  if (!records.ok()) Broken(records.status().ToString());
  return *std::move(records);
}

uint64_t Bench::StepOf(const Assignment& assignment) const {
  auto page = rundir::ProgressPage::Open(RankDir(assignment));
  return page.ok() ? (*std::as_const(*page))->step.load() : 0;
}

std::pair<uint64_t, std::string> Bench::NewestWeights(const JobSpec& spec) const {
  const std::string& path = spec.train().checkpoint().path();
  const std::vector<checkpoint::StepName> steps = checkpoint::List(path);
  if (steps.empty()) return {0, "no checkpoint"};
  const std::string shard = absl::StrCat(path, "/", steps[0].Directory(), "/shard-00000.safetensors");
  return {steps[0].step, Sha256Hex(Slurp(shard))};
}

}  // namespace muster::trainer
