#include "coordinator/web/api.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "common/utf8.h"
#include "coordinator/web/thin.h"
#include "coordinator/web/watch_call.h"
#include "coordinator/web/watch_stream.h"

namespace muster::web {
namespace {

constexpr absl::Duration kCallLimit = absl::Seconds(30);
constexpr absl::Duration kLongCallLimit = absl::Minutes(2);  // plans, traces, a whole history
constexpr uint32_t kDefaultBins = 500, kMostBins = 5000;
constexpr uint32_t kDefaultLines = 1000;
constexpr size_t kMostLines = 5000;
constexpr size_t kMostEvents = 10'000;
constexpr size_t kMostBytes = 8 << 20;  // of lines or events in a reply
constexpr size_t kStreamsOfToken = 32;

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

absl::Status FromJson(const std::string& text, google::protobuf::Message& message) {
  const auto status = google::protobuf::util::JsonStringToMessage(text, &message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the body is not a valid ", message.GetDescriptor()->name(),
                                                 " in JSON: ", std::string(status.message())));
}

// What a list shows of a job; the rest is in the job itself.
void Summarize(Job& job) {
  JobSpec shown;
  shown.set_name(job.spec().name());
  *shown.mutable_resources() = job.spec().resources();
  if (job.spec().has_priority()) shown.set_priority(job.spec().priority());
  if (job.spec().has_train()) {
    shown.mutable_train()->set_steps(job.spec().train().steps());
    *shown.mutable_train()->mutable_strategy() = job.spec().train().strategy();
  }
  *job.mutable_spec() = std::move(shown);
  job.clear_checkpoints();
  job.clear_refused_by();
  job.clear_time_breakdown();
}

std::string ErrorJson(const absl::Status& status) {
  std::string errors;
  if (const absl::optional<absl::Cord> details = status.GetPayload(rpc::kErrorDetails)) {
    SpecErrors parsed;
    if (parsed.ParseFromString(std::string(*details))) {
      for (const SpecError& error : parsed.errors()) absl::StrAppend(&errors, errors.empty() ? "" : ",", JsonOf(error));
    }
  }
  return absl::StrCat("{\"error\":{\"code\":\"", absl::StatusCodeToString(status.code()),
                      "\",\"message\":", JsonText({status.message().data(), status.message().size()}),
                      errors.empty() ? "" : absl::StrCat(",\"spec_errors\":[", errors, "]"), "}}");
}

// The newest of many texts, bounded in number and bytes.
class Newest {
 public:
  explicit Newest(size_t most) : most_(most) {}
  void Add(std::string text) {
    bytes_ += text.size();
    texts_.push_back(std::move(text));
    while (texts_.size() > most_ || (bytes_ > kMostBytes && texts_.size() > 1)) {
      bytes_ -= texts_.front().size();
      texts_.pop_front();
      ++left_out_;
    }
  }
  uint64_t left_out() const { return left_out_; }
  std::string Joined() const { return absl::StrJoin(texts_, ","); }

 private:
  const size_t most_;
  std::deque<std::string> texts_;
  size_t bytes_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace

absl::StatusOr<uint32_t> NumberOf(const HttpRequest& request, const std::string& name, uint32_t otherwise) {
  const std::string text = request.Query(name);
  uint32_t number = otherwise;
  if (text.empty() || absl::SimpleAtoi(text, &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected a whole number"));
}

std::string JsonOf(const google::protobuf::Message& message, Defaults defaults) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = defaults == Defaults::kShown;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "null";
  return text;
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  const absl::string_view whole(text.data(), text.size());
  for (size_t i = 0, length = 1; i < whole.size(); i += length) {
    const char c = whole[i];
    const auto byte = static_cast<unsigned char>(c);
    length = 1;
    if (byte >= 0x80) {
      length = DecodeUtf8(whole.substr(i)).first;
      absl::StrAppend(&out, length == 0 ? "\xEF\xBF\xBD" : whole.substr(i, length));  // U+FFFD
      length = std::max<size_t>(1, length);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || c == '<' || c == 0x7f) {
      absl::StrAppend(&out, absl::StrFormat("\\u%04x", byte));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

HttpResponse JsonResponse(std::string body) {
  return {200, {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}}, std::move(body)};
}

HttpResponse ErrorResponse(const absl::Status& status) {
  HttpResponse response = JsonResponse(ErrorJson(status));
  response.status = HttpStatusOf(status.code());
  return response;
}

struct Api::Call {
  std::string token;
  std::shared_ptr<Exchange> exchange;
  std::string of;       // what {job} or {node} stands for
  std::string browser;  // of rpc::kWebPeer

  const HttpRequest& request() const { return exchange->request(); }
  void Fail(const absl::Status& status) const { exchange->Reply(ErrorResponse(status)); }
};

struct Api::Handler {
  Route route;
  std::function<void(const Api&, const Call&)> serve;
};

namespace {

// A unary call of the coordinator. `start` begins it; `done` gets its status and its reply. `browser`: of
// rpc::kWebPeer.
template <typename Request, typename Reply, typename Start, typename Done>
void Unary(const std::string& token, Request request, absl::Duration limit, Start start, Done done,
           const std::string& browser = "") {
  struct State {
    grpc::ClientContext context;
    Request request;
    Reply reply;
  };
  auto state = std::make_shared<State>();
  state->request = std::move(request);
  state->context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
  rpc::AddCallMetadata(token, state->context);
  if (!browser.empty()) state->context.AddMetadata(rpc::kWebPeer, browser);
  start(&state->context, &state->request, &state->reply,
        [state, done = std::move(done)](const grpc::Status& status) { done(rpc::FromGrpc(status), state->reply); });
}

// Replies with the reply of the call, as it is. `Call` is Api::Call.
template <typename Reply, typename Call, typename Request, typename Start>
void Mirror(const Call& call, Request request, Start start, absl::Duration limit = kCallLimit) {
  Unary<Request, Reply>(
      call.token, std::move(request), limit, std::move(start),
      [exchange = call.exchange](const absl::Status& status, const Reply& reply) {
        if (status.ok()) exchange->SetKnown();
        exchange->Reply(status.ok() ? JsonResponse(JsonOf(reply)) : ErrorResponse(status));
      },
      call.browser);
}

}  // namespace

#define MUSTER_START(stub, method)                                     \
  [this](auto* context, auto* request, auto* reply, auto done) {       \
    (stub)->async()->method(context, request, reply, std::move(done)); \
  }

Api::Api(const std::shared_ptr<grpc::Channel>& channel, std::string secret)
    : secret_(std::move(secret)),
      jobs_(Jobs::NewStub(channel)),
      nodes_(Nodes::NewStub(channel)),
      admin_(Admin::NewStub(channel)),
      trust_(Trust::NewStub(channel)) {}

const std::vector<Api::Handler>& Api::Handlers() {
  using AdminCalls = Admin::StubInterface::async_interface;
  using JobsCalls = Jobs::StubInterface::async_interface;
  using NodesCalls = Nodes::StubInterface::async_interface;
  using TrustCalls = Trust::StubInterface::async_interface;
  // A call whose request says no more than the path.
  const auto of_path =
      []<typename Stub, typename Calls, typename Request, typename Reply>(
          const std::unique_ptr<Stub> Api::*stub,
          void (Calls::*method)(grpc::ClientContext*, const Request*, Reply*, std::function<void(grpc::Status)>)) {
        return [stub, method](const Api& api, const Call& call) {
          Request request;
          if constexpr (requires { request.set_job(call.of); }) request.set_job(call.of);
          if constexpr (requires { request.set_node(call.of); }) request.set_node(call.of);
          Mirror<Reply>(call, std::move(request),
                        [calls = (api.*stub)->async(), method](auto* context, auto* sent, auto* reply, auto done) {
                          (calls->*method)(context, sent, reply, std::move(done));
                        });
        };
      };
  static const auto& handlers = *new std::vector<Handler>{
      {{"GET", "/api/v1/version"}, of_path(&Api::admin_, &AdminCalls::Version)},
      {{"GET", "/api/v1/nodes"}, of_path(&Api::nodes_, &NodesCalls::List)},
      {{"GET", "/api/v1/nodes/{node}/use"}, of_path(&Api::nodes_, &NodesCalls::Use)},
      {{"POST", "/api/v1/nodes/{node}/drain"}, of_path(&Api::nodes_, &NodesCalls::Drain)},
      {{"POST", "/api/v1/nodes/{node}/undrain"}, of_path(&Api::nodes_, &NodesCalls::Undrain)},
      {{"GET", "/api/v1/projects"}, of_path(&Api::admin_, &AdminCalls::ListProjects)},
      {{"GET", "/api/v1/reservations"}, of_path(&Api::admin_, &AdminCalls::ListReservations)},
      {{"GET", "/api/v1/audit"}, &Api::Audit},
      {{"GET", "/api/v1/jobs"}, &Api::ListJobs},
      {{"POST", "/api/v1/jobs"}, &Api::Submit},
      {{"POST", "/api/v1/plan"}, &Api::Plan},
      {{"GET", "/api/v1/jobs/{job}"}, &Api::GetJob},
      {{"GET", "/api/v1/jobs/{job}/plan"}, &Api::PlanOfJob},
      {{"GET", "/api/v1/jobs/{job}/metrics"}, &Api::Metrics},
      {{"GET", "/api/v1/jobs/{job}/logs"}, &Api::Logs},
      {{"GET", "/api/v1/jobs/{job}/events"}, &Api::Events},
      {{"GET", "/api/v1/jobs/{job}/watch"}, &Api::Watch},
      {{"POST", "/api/v1/jobs/{job}/cancel"}, of_path(&Api::jobs_, &JobsCalls::Cancel)},
      {{"POST", "/api/v1/jobs/{job}/pause"}, of_path(&Api::jobs_, &JobsCalls::Pause)},
      {{"POST", "/api/v1/jobs/{job}/resume"}, of_path(&Api::jobs_, &JobsCalls::Resume)},
      {{"POST", "/api/v1/jobs/{job}/label"}, &Api::Label},
      {{"POST", "/api/v1/jobs/{job}/note"}, &Api::Note},
      {{"POST", "/api/v1/jobs/{job}/trace"}, &Api::Trace},
      {{"GET", "/api/v1/watch"}, &Api::Watch},
      {{"GET", "/api/v1/tokens"}, of_path(&Api::trust_, &TrustCalls::ListTokens)},
  };
  return handlers;
}

std::vector<Route> Api::Routes() {
  std::vector<Route> routes;
  for (const Handler& handler : Handlers()) routes.push_back(handler.route);
  return routes;
}

void Api::Serve(const std::string& token, const std::shared_ptr<Exchange>& exchange) const {
  const HttpRequest& request = exchange->request();
  const std::vector<std::string> segments = absl::StrSplit(request.path, '/');
  std::string allowed;
  for (const Handler& handler : Handlers()) {
    const std::vector<absl::string_view> wanted =
        absl::StrSplit(absl::string_view(handler.route.path.data(), handler.route.path.size()), '/');
    if (wanted.size() != segments.size()) continue;
    Call call{token, exchange, "", absl::StrCat(secret_, " ", request.peer)};
    bool fits = true;
    for (size_t i = 0; i < wanted.size() && fits; ++i) {
      if (!absl::StartsWith(wanted[i], "{")) {
        fits = wanted[i] == segments[i];
      } else {
        // Ids are printable ASCII; an empty one would mean all jobs to some calls.
        fits = PercentDecode(segments[i], false, call.of) && !call.of.empty() &&
               std::all_of(call.of.begin(), call.of.end(), [](char c) { return c > ' ' && c < 0x7f; });
      }
    }
    if (!fits) continue;
    if (handler.route.method == request.method) return handler.serve(*this, call);
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", std::string(handler.route.method));
  }
  if (allowed.empty())
    return exchange->Reply(ErrorResponse(absl::NotFoundError("no such path; see /api/openapi.json")));
  HttpResponse response = ErrorResponse(absl::InvalidArgumentError(absl::StrCat("this path takes ", allowed)));
  response.status = 405;
  response.fields.emplace_back("Allow", allowed);
  exchange->Reply(std::move(response));
}

void Api::SignIn(const std::string& token, const std::string& peer,
                 std::function<void(absl::StatusOr<SignInReply>)> done) const {
  Unary<SignInRequest, SignInReply>(
      token, {}, kCallLimit, MUSTER_START(admin_, SignIn),
      [done = std::move(done)](const absl::Status& status, const SignInReply& reply) {
        if (!status.ok()) return done(status);
        done(reply);
      },
      absl::StrCat(secret_, " ", peer));
}

void Api::Audit(const Call& call) const {
  const HttpRequest& from = call.request();
  ListAuditRequest request;
  const absl::StatusOr<uint32_t> limit = NumberOf(from, "limit", 0);
  if (!limit.ok()) return call.Fail(limit.status());
  request.set_limit(*limit);
  request.set_user(from.Query("user"));
  request.set_method(from.Query("method"));
  request.set_object(from.Query("object"));
  request.set_page(from.Query("page"));
  absl::Time since;
  std::string wrong;
  if (!from.Query("since").empty()) {
    if (!absl::ParseTime(absl::RFC3339_full, from.Query("since"), &since, &wrong)) {
      return call.Fail(absl::InvalidArgumentError("since: expected a time as 2026-01-31T12:00:00Z"));
    }
    *request.mutable_since() = ToProto(since);
  }
  Mirror<ListAuditReply>(call, std::move(request), MUSTER_START(admin_, ListAudit));
}

void Api::Label(const Call& call) const {
  LabelRequest request;
  if (absl::Status parsed = FromJson(call.request().body, request); !parsed.ok()) return call.Fail(parsed);
  request.set_job(call.of);
  Mirror<LabelReply>(call, std::move(request), MUSTER_START(jobs_, Label));
}

void Api::Note(const Call& call) const {
  NoteRequest request;
  if (absl::Status parsed = FromJson(call.request().body, request); !parsed.ok()) return call.Fail(parsed);
  request.set_job(call.of);
  Mirror<NoteReply>(call, std::move(request), MUSTER_START(jobs_, Note));
}

void Api::GetJob(const Call& call) const {
  const absl::StatusOr<uint32_t> generations = NumberOf(call.request(), "generations", 0);
  if (!generations.ok()) return call.Fail(generations.status());
  GetJobRequest request;
  request.set_job(call.of);
  request.set_generations(*generations);
  Mirror<GetJobReply>(call, std::move(request), MUSTER_START(jobs_, Get));
}

void Api::ListJobs(const Call& call) const {
  ListJobsRequest request;
  const absl::StatusOr<uint32_t> limit = NumberOf(call.request(), "limit", 0);
  if (!limit.ok()) return call.Fail(limit.status());
  request.set_limit(*limit);
  request.set_all(call.request().Query("all") == "1");
  request.set_page(call.request().Query("page"));
  if (const std::string selector = call.request().Query("selector"); !selector.empty()) {
    for (const absl::string_view part : absl::StrSplit(selector, ',')) request.add_selector(std::string(part));
  }
  const bool summary = call.request().Query("view") == "summary";
  Unary<ListJobsRequest, ListJobsReply>(
      call.token, request, kCallLimit, MUSTER_START(jobs_, List),
      [call, summary](const absl::Status& status, ListJobsReply& reply) {
        if (!status.ok()) return call.Fail(status);
        if (summary) {
          for (JobSummary& job : *reply.mutable_jobs()) Summarize(*job.mutable_job());
        }
        call.exchange->Reply(JsonResponse(JsonOf(reply, summary ? Defaults::kLeftOut : Defaults::kShown)));
      });
}

void Api::PlanOfJob(const Call& call) const {
  GetJobRequest request;
  request.set_job(call.of);
  Unary<GetJobRequest, GetJobReply>(call.token, request, kCallLimit, MUSTER_START(jobs_, Get),
                                    [this, call](const absl::Status& status, const GetJobReply& reply) {
                                      if (!status.ok()) return call.Fail(status);
                                      PlanRequest plan;
                                      *plan.mutable_spec() = reply.job().spec();
                                      plan.set_ops(true);
                                      Mirror<PlanReply>(call, std::move(plan), MUSTER_START(jobs_, Plan),
                                                        kLongCallLimit);
                                    });
}

void Api::Plan(const Call& call) const {
  PlanRequest request;
  if (absl::Status parsed = FromJson(call.request().body, request); !parsed.ok()) return call.Fail(parsed);
  Mirror<PlanReply>(call, std::move(request), MUSTER_START(jobs_, Plan), kLongCallLimit);
}

void Api::Submit(const Call& call) const {
  SubmitRequest request;
  if (absl::Status parsed = FromJson(call.request().body, request); !parsed.ok()) return call.Fail(parsed);
  Mirror<SubmitReply>(call, std::move(request), MUSTER_START(jobs_, Submit), kLongCallLimit);
}

void Api::Trace(const Call& call) const {
  TraceRequest request;
  if (absl::Status parsed = FromJson(call.request().body.empty() ? "{}" : call.request().body, request); !parsed.ok()) {
    return call.Fail(parsed);
  }
  request.set_job(call.of);
  Mirror<TraceReply>(call, request, MUSTER_START(jobs_, Trace), kLongCallLimit);
}

void Api::Metrics(const Call& call) const {
  const absl::StatusOr<uint32_t> bins = NumberOf(call.request(), "points", kDefaultBins);
  if (!bins.ok()) return call.Fail(bins.status());
  if (*bins < 2 || *bins > kMostBins) {
    return call.Fail(absl::InvalidArgumentError(absl::StrCat("points: expected 2 to ", kMostBins)));
  }
  struct Read {
    explicit Read(size_t most) : thin(most) {}
    SeriesThinner thin;
    std::string cursor;
  };
  const auto read = std::make_shared<Read>(*bins);
  WatchRequest request;
  request.set_job(call.of);
  request.set_metrics(true);
  StartWatch(
      *jobs_, call.token, request, kLongCallLimit,
      [read](const WatchItem& item, const NextItem& next) {
        if (!item.cursor().empty()) read->cursor = item.cursor();
        if (item.has_metrics()) read->thin.Add(item.metrics());
        next(true);
      },
      [call, read](const absl::Status& status) {
        if (!status.ok()) return call.Fail(status);
        call.exchange->Reply(JsonResponse(
            absl::StrCat("{\"cursor\":", JsonText(read->cursor), ",\"metrics\":", read->thin.Json(), "}")));
      });
}

void Api::Logs(const Call& call) const {
  const HttpRequest& from = call.request();
  WatchRequest request;
  request.set_job(call.of);
  request.set_logs(true);
  const absl::StatusOr<uint32_t> rank = NumberOf(from, "rank", 0), tail = NumberOf(from, "tail", kDefaultLines);
  if (!rank.ok()) return call.Fail(rank.status());
  if (!tail.ok()) return call.Fail(tail.status());
  if (!from.Query("rank").empty()) request.set_rank(*rank);
  const std::string needle = from.Query("grep");
  if (!from.Query("after").empty()) {
    request.set_cursor(from.Query("after"));
  } else if (needle.empty()) {
    request.set_tail(*tail);
  }
  struct Read {
    Newest lines{kMostLines};
    std::string cursor;
  };
  const auto read = std::make_shared<Read>();
  StartWatch(
      *jobs_, call.token, request, kLongCallLimit,
      [read, needle](const WatchItem& item, const NextItem& next) {
        if (!item.cursor().empty()) read->cursor = item.cursor();
        if (item.has_log()) {
          std::vector<absl::string_view> lines = absl::StrSplit(item.log().text(), '\n');
          if (!lines.empty() && lines.back().empty()) lines.pop_back();
          for (const absl::string_view line : lines) {
            if (!needle.empty() && !absl::StrContains(line, needle)) continue;
            read->lines.Add(absl::StrCat(
                "{\"generation\":", item.log().generation(), ",\"rank\":", item.log().rank(), ",\"time\":",
                absl::StrFormat("%.3f", absl::ToDoubleSeconds(FromProto(item.log().time()) - absl::UnixEpoch())),
                ",\"text\":", JsonText({line.data(), line.size()}), "}"));
          }
        }
        next(true);
      },
      [call, read](const absl::Status& status) {
        if (!status.ok()) return call.Fail(status);
        call.exchange->Reply(
            JsonResponse(absl::StrCat("{\"cursor\":", JsonText(read->cursor), ",\"left_out\":", read->lines.left_out(),
                                      ",\"lines\":[", read->lines.Joined(), "]}")));
      });
}

void Api::Events(const Call& call) const {
  struct Read {
    Newest events{kMostEvents};
    std::string cursor;
  };
  const auto read = std::make_shared<Read>();
  WatchRequest request;
  request.set_job(call.of);
  request.set_events(true);
  StartWatch(
      *jobs_, call.token, request, kLongCallLimit,
      [read](const WatchItem& item, const NextItem& next) {
        if (!item.cursor().empty()) read->cursor = item.cursor();
        if (item.has_event()) read->events.Add(JsonOf(item.event()));
        next(true);
      },
      [call, read](const absl::Status& status) {
        if (!status.ok()) return call.Fail(status);
        call.exchange->Reply(JsonResponse(
            absl::StrCat("{\"cursor\":", JsonText(read->cursor), ",\"events\":[", read->events.Joined(), "]}")));
      });
}

void Api::Watch(const Call& call) const {
  const absl::StatusOr<std::vector<Channel>> channels = ChannelsOf(call.request(), call.of);
  if (!channels.ok()) return call.Fail(channels.status());
  {
    const MutexLock lock(streams_->mutex);
    if (streams_->of_token[call.token] >= kStreamsOfToken) {
      return call.Fail(absl::ResourceExhaustedError(absl::StrCat(
          kStreamsOfToken, " streams of this token are open, as many as it may have: close other pages first")));
    }
    ++streams_->of_token[call.token];
  }
  StreamWatches(*jobs_, call.token, *channels, call.exchange, [streams = streams_, token = call.token] {
    const MutexLock lock(streams->mutex);
    if (--streams->of_token[token] == 0) streams->of_token.erase(token);
  });
}

#undef MUSTER_START

}  // namespace muster::web
