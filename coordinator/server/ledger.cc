#include "coordinator/server/ledger.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/random_text.h"

namespace muster::server {
namespace {

constexpr char kEventPrefix[] = "event/";
constexpr char kEventEnd[] = "event0";  // '0' is the character after '/'
constexpr char kAuditPrefix[] = "audit/";
constexpr char kAuditEnd[] = "audit0";
constexpr char kSequenceKey[] = "sequence";
constexpr char kStoreIdKey[] = "store_id";
constexpr size_t kStoreIdCharacters = 16;

std::string EventKey(uint64_t sequence) { return absl::StrFormat("%s%020d", kEventPrefix, sequence); }

std::string AuditKey(uint64_t number) { return absl::StrFormat("%s%020d", kAuditPrefix, number); }

uint64_t LinesOf(const LogChunk& chunk) {
  const std::string& text = chunk.text();
  const auto lines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  return std::max<uint64_t>(1, text.empty() || text.back() == '\n' ? lines : lines + 1);
}

// Splits the changes of one event into groups within any store's limits. SQLite commits them in one transaction anyway.
void AddGroups(std::vector<store::Change> changes, std::vector<store::ChangeGroup>& groups) {
  for (size_t begin = 0; begin < changes.size(); begin += store::kMaxCommitKeys) {
    const size_t end = std::min(changes.size(), begin + store::kMaxCommitKeys);
    groups.emplace_back(std::make_move_iterator(changes.begin() + begin),
                        std::make_move_iterator(changes.begin() + end));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& directory, const store::HistoryLimits& limits,
                                                     uint64_t audit_kept) {
  auto state = store::OpenSqliteState(directory);
  if (!state.ok()) return state.status();
  auto history = store::OpenSqliteHistory(directory, limits, [state = state->get()] { return state->HasReserve(); });
  if (!history.ok()) {
    return absl::Status(history.status().code(),
                        absl::StrCat(history.status().message(),
                                     " (this file holds only metrics and logs; without it no job is lost)"));
  }
  absl::StatusOr<std::unique_ptr<Ledger>> ledger = Over(*std::move(state), *std::move(history), audit_kept);
  if (!ledger.ok()) return ledger;
  if (absl::Status status = (*ledger)->LoadStoreId(); !status.ok()) return status;
  return ledger;
}

absl::Status Ledger::LoadStoreId() {
  const auto stored = state_->Get(kStoreIdKey);
  if (!stored.ok()) return stored.status();
  if (stored->has_value()) {
    store_id_ = **stored;
    return state_->Commit(term_, {});  // so that a later coordinator has a higher term, whatever this one does
  }
  absl::StatusOr<std::string> made = RandomText(kStoreIdCharacters, "0123456789abcdef");
  if (!made.ok()) return made.status();
  store_id_ = *std::move(made);
  return state_->Commit(term_, {{{kStoreIdKey, store_id_}}});
}

absl::Status Ledger::LoadCopyMark() {
  const auto mark = state_->Get(store::kCopyKey);
  if (!mark.ok()) return mark.status();
  restored_copy_ = mark->has_value();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Over(std::unique_ptr<store::StateStore> state,
                                                     std::unique_ptr<store::HistoryStore> history,
                                                     uint64_t audit_kept) {
  std::unique_ptr<Ledger> ledger(new Ledger(std::move(state), std::move(history), audit_kept));
  if (absl::Status status = ledger->LoadCopyMark(); !status.ok()) return status;
  if (absl::Status status = ledger->LoadEvents(); !status.ok()) return status;
  if (absl::Status status = ledger->LoadAudit(); !status.ok()) return status;
  return ledger;
}

absl::Status Ledger::LoadEvents() {
  const auto stored = state_->Get(kSequenceKey);
  if (!stored.ok()) return stored.status();
  uint64_t sequence = 0;
  if (stored->has_value() && !absl::SimpleAtoi(**stored, &sequence)) {
    return absl::DataLossError(absl::StrCat("state.db: the row \"", kSequenceKey, "\" is not a number"));
  }
  last_sequence_ = std::max(sequence, history_->LastSequence());
  constexpr size_t kPortion = 4096;
  std::string begin = kEventPrefix;
  while (true) {
    const auto rows = state_->Range(begin, kEventEnd, kPortion);
    if (!rows.ok()) return rows.status();
    for (const store::KeyValue& row : *rows) {
      StateEvent event;
      if (!absl::SimpleAtoi(row.key.substr(sizeof(kEventPrefix) - 1), &sequence) || !event.ParseFromString(row.value)) {
        return absl::DataLossError(absl::StrCat("state.db: the row \"", row.key, "\" is not a state event"));
      }
      events_.push_back(sequence);
      if (!event.job().empty()) {
        events_of_job_[JobId(event.job())].push_back(sequence);
      } else {
        events_of_nodes_.push_back(sequence);
      }
      last_sequence_ = std::max(last_sequence_, sequence);
    }
    if (rows->size() < kPortion) return absl::OkStatus();
    begin = rows->back().key + '\0';
  }
}

// The numbers have no holes, so the first and the last say which there are.
absl::Status Ledger::LoadAudit() {
  const auto first = state_->Range(kAuditPrefix, kAuditEnd, 1);
  if (!first.ok() || first->empty()) return first.status();
  const auto number_of = [](const std::string& key, uint64_t& number) {
    if (absl::SimpleAtoi(key.substr(sizeof(kAuditPrefix) - 1), &number)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("state.db: the row \"", key, "\" has no number"));
  };
  if (absl::Status status = number_of(first->front().key, audit_first_); !status.ok()) return status;
  uint64_t there = audit_first_, missing = audit_first_ + 1;
  const auto has = [&](uint64_t number) -> absl::StatusOr<bool> {
    const auto row = state_->Get(AuditKey(number));
    if (!row.ok()) return row.status();
    return row->has_value();
  };
  for (uint64_t step = 1;; step *= 2) {
    const absl::StatusOr<bool> found = has(missing);
    if (!found.ok()) return found.status();
    if (!*found) break;
    there = missing;
    missing += step;
  }
  while (missing - there > 1) {
    const uint64_t middle = there + (missing - there) / 2;
    const absl::StatusOr<bool> found = has(middle);
    if (!found.ok()) return found.status();
    (*found ? there : missing) = middle;
  }
  audit_last_ = there;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AuditEntry>> Ledger::ReadAudit(uint64_t before, size_t count) {
  const uint64_t end = before == 0 ? audit_last_ + 1 : std::min(before, audit_last_ + 1);
  const uint64_t begin = end <= audit_first_ ? end : end - std::min<uint64_t>(count, end - audit_first_);
  const auto rows = state_->Range(AuditKey(begin), AuditKey(end), 0);
  if (!rows.ok()) return rows.status();
  std::vector<AuditEntry> entries(rows->size());
  for (size_t i = 0; i < rows->size(); ++i) {
    if (!entries[entries.size() - 1 - i].ParseFromString((*rows)[i].value)) {
      return absl::DataLossError(absl::StrCat("state.db: the row \"", (*rows)[i].key, "\" is not an audit entry"));
    }
  }
  return entries;
}

absl::Status Ledger::PruneAudit() {
  const uint64_t at_once = std::min<uint64_t>(1000, 1 + audit_kept_ / 10);
  if (audit_last_ + 1 - audit_first_ < audit_kept_ + at_once) return absl::OkStatus();
  std::vector<store::Change> changes;
  for (uint64_t i = 0; i < at_once; ++i) changes.push_back({AuditKey(audit_first_ + i), std::nullopt});
  std::vector<store::ChangeGroup> groups;
  AddGroups(std::move(changes), groups);
  const absl::Status status = state_->Commit(term_, groups);
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();  // when the disk has room
  if (status.ok()) audit_first_ += at_once;
  return status;
}

absl::StatusOr<std::vector<store::KeyValue>> Ledger::Rows() {
  auto rows = state_->Range("", kAuditPrefix, 0);
  if (!rows.ok()) return rows;
  auto before_events = state_->Range(kAuditEnd, kEventPrefix, 0);
  if (!before_events.ok()) return before_events;
  rows->insert(rows->end(), std::make_move_iterator(before_events->begin()),
               std::make_move_iterator(before_events->end()));
  auto after_events = state_->Range(kEventEnd, "", 0);
  if (!after_events.ok()) return after_events;
  for (store::KeyValue& row : *after_events) {
    if (row.key != kSequenceKey && row.key != kStoreIdKey) rows->push_back(std::move(row));
  }
  std::erase_if(*rows, [](const store::KeyValue& row) { return row.key == store::kCopyKey; });
  return rows;
}

absl::Status Ledger::Commit(const std::vector<Transaction>& transactions) {
  for (const Transaction& transaction : transactions) {
    for (const StateEvent& event : transaction.events) {
      if (!staged_jobs_.contains(JobId(event.job()))) continue;
      if (absl::Status status = Flush(); !status.ok()) return status;
    }
  }
  std::vector<store::ChangeGroup> groups;
  std::vector<std::pair<uint64_t, JobId>> events;
  uint64_t audit_last = audit_last_;
  for (const Transaction& transaction : transactions) {
    std::vector<store::Change> changes;
    // First, so that they are in the group of the first of the rows.
    for (AuditEntry entry : transaction.audit) {
      entry.set_number(++audit_last);
      changes.push_back({AuditKey(audit_last), entry.SerializeAsString()});
    }
    changes.insert(changes.end(), transaction.rows.begin(), transaction.rows.end());
    for (const StateEvent& event : transaction.events) {
      changes.push_back({EventKey(++last_sequence_), event.SerializeAsString()});
      events.emplace_back(last_sequence_, JobId(event.job()));
    }
    AddGroups(std::move(changes), groups);
  }
  if (restored_copy_) groups.push_back({{store::kCopyKey, std::nullopt}});
  if (groups.empty()) return absl::OkStatus();
  // The events may be deleted with their job, but the position must not go back.
  if (!events.empty()) groups.push_back({{kSequenceKey, absl::StrCat(last_sequence_)}});
  if (absl::Status status = state_->Commit(term_, groups); !status.ok()) return status;
  restored_copy_ = false;
  audit_last_ = audit_last;
  for (const auto& [sequence, job] : events) {
    events_.push_back(sequence);
    if (!job.empty()) {
      events_of_job_[job].push_back(sequence);
    } else {
      events_of_nodes_.push_back(sequence);
    }
    changed_jobs_.insert(job);
  }
  if (absl::Status status = PruneAudit(); !status.ok()) return status;
  return PruneNodeEvents();
}

absl::Status Ledger::PruneNodeEvents() {
  constexpr size_t kAtOnce = 1000;
  if (events_of_nodes_.size() < kNodeEventsKept + kAtOnce) return absl::OkStatus();
  const std::set<uint64_t> gone(events_of_nodes_.begin(), events_of_nodes_.begin() + kAtOnce);
  std::vector<store::Change> changes;
  for (const uint64_t sequence : gone) changes.push_back({EventKey(sequence), std::nullopt});
  std::vector<store::ChangeGroup> groups;
  AddGroups(std::move(changes), groups);
  const absl::Status status = state_->Commit(term_, groups);
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();  // when the disk has room
  if (!status.ok()) return status;
  events_of_nodes_.erase(events_of_nodes_.begin(), events_of_nodes_.begin() + kAtOnce);
  std::erase_if(events_, [&](uint64_t sequence) { return gone.contains(sequence); });
  return absl::OkStatus();
}

MetricPoint Ledger::LastMetrics(const JobId& job) const {
  MetricPoint last = history_->LastMetrics(job);
  const auto found = step_times_.find(job);
  if (last.has_step_seconds() && found != step_times_.end()) {
    last.set_mean_step_seconds(found->second.mean_seconds());
  }
  return last;
}

void Ledger::Stage(const JobId& job, std::variant<MetricPoint, LogChunk> item) {
  if (const auto* point = std::get_if<MetricPoint>(&item); point != nullptr && point->step_seconds() > 0) {
    step_times_[job].Add(point->step(), point->step_seconds());
  }
  store::HistoryItem& staged = staged_items_.emplace_back();
  staged.job = job;
  std::visit([&](auto& body) { staged.body = std::move(body); }, item);
  staged_jobs_.insert(job);
}

void Ledger::Stage(const RankId& rank, const store::Acknowledged& input) {
  store::Acknowledged& staged = staged_input_[rank];
  staged.record_sequence = std::max(staged.record_sequence, input.record_sequence);
  staged.log_offset = std::max(staged.log_offset, input.log_offset);
}

Ledger::Series Ledger::SeriesOf(const store::HistoryItem& item) {
  const auto* chunk = std::get_if<LogChunk>(&item.body);
  if (chunk == nullptr) return {item.job, std::nullopt};
  return {item.job, std::pair(chunk->generation(), chunk->rank())};
}

absl::Status Ledger::Flush() {
  if (staged() == 0) return absl::OkStatus();
  std::map<Series, Dropped> gaps = gaps_;
  for (store::HistoryItem& item : staged_items_) {
    item.sequence = ++last_sequence_;
    const auto gap = gaps.find(SeriesOf(item));
    if (gap == gaps.end()) continue;
    item.dropped = gap->second.items;
    item.dropped_through = gap->second.through;
    gaps.erase(gap);
  }
  const StoredInput input(staged_input_.begin(), staged_input_.end());
  const absl::Status status = history_->Append(staged_items_, input);
  if (status.ok()) {
    gaps_ = std::move(gaps);
  } else if (absl::IsResourceExhausted(status)) {
    for (const store::HistoryItem& item : staged_items_) {
      Dropped& gap = gaps_[SeriesOf(item)];
      ++gap.items;
      gap.through = item.sequence;
    }
    dropped_ += staged_items_.size();
  } else {
    return status;
  }
  stored_input_.insert(stored_input_.end(), input.begin(), input.end());
  changed_jobs_.merge(staged_jobs_);
  staged_items_.clear();
  staged_input_.clear();
  staged_jobs_.clear();
  return absl::OkStatus();
}

const std::vector<uint64_t>& Ledger::EventsOf(const JobId& job) const {
  static const std::vector<uint64_t>& none = *new std::vector<uint64_t>();
  if (job.empty()) return events_;
  const auto found = events_of_job_.find(job);
  return found == events_of_job_.end() ? none : found->second;
}

absl::Status Ledger::ReadEvents(const StreamFilter& filter, uint64_t after, StreamPage& page) {
  const std::vector<uint64_t>& sequences = EventsOf(filter.job);
  size_t size = 0;
  for (auto at = std::upper_bound(sequences.begin(), sequences.end(), after); at != sequences.end(); ++at) {
    if (page.items.size() >= kPageItems || size > kPageBytes) {
      page.more = true;
      return absl::OkStatus();
    }
    const auto value = state_->Get(EventKey(*at));
    if (!value.ok()) return value.status();
    StateEvent event;
    if (!value->has_value() || !event.ParseFromString(**value)) {
      return absl::DataLossError(absl::StrCat("state.db: event ", *at, " is missing or does not parse"));
    }
    size += (*value)->size();
    JobId job(event.job());
    page.items.push_back({*at, std::move(job), std::move(event)});
  }
  return absl::OkStatus();
}

// `horizon`: in: up to which position the page's events are known; out: up to which position all kinds are known.
absl::Status Ledger::ReadHistory(const StreamFilter& filter, uint64_t after, uint64_t& horizon, StreamPage& page) {
  auto history = history_->Read({filter.job, filter.metrics, filter.logs, filter.rank}, after, kPageItems, kPageBytes);
  if (!history.ok()) return history.status();
  if (history->more) {
    page.more = true;
    horizon = std::min(horizon, history->items.back().sequence);
  }
  int metrics_gap = -1, logs_gap = -1;
  const auto add_gap = [&](int& at, const char* what, const store::HistoryItem& item, uint64_t through,
                           uint64_t count) {
    if (count == 0) return;
    if (at < 0) {
      at = static_cast<int>(page.items.size());
      Gap gap;
      gap.set_what(what);
      page.items.push_back({through, item.job, gap});
    }
    Gap& gap = std::get<Gap>(page.items[at].body);
    gap.set_items(gap.items() + count);
  };
  for (store::HistoryItem& item : history->items) {
    if (item.sequence > horizon) break;
    if (const auto* pruned = std::get_if<store::Pruned>(&item.body)) {
      if (filter.metrics) add_gap(metrics_gap, "metrics", item, item.sequence, pruned->metrics);
      if (filter.logs) add_gap(logs_gap, "logs", item, item.sequence, pruned->log_chunks);
    } else if (auto* point = std::get_if<MetricPoint>(&item.body)) {
      add_gap(metrics_gap, "metrics", item, item.dropped_through, item.dropped);
      page.items.push_back({item.sequence, item.job, std::move(*point)});
    } else if (auto* chunk = std::get_if<LogChunk>(&item.body)) {
      add_gap(logs_gap, "logs", item, item.dropped_through, item.dropped);
      page.items.push_back({item.sequence, item.job, std::move(*chunk)});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StreamPage> Ledger::Read(const StreamFilter& filter, uint64_t after) {
  StreamPage page;
  if (filter.events) {
    if (absl::Status status = ReadEvents(filter, after, page); !status.ok()) return status;
  }
  uint64_t horizon = page.more ? page.items.back().sequence : std::numeric_limits<uint64_t>::max();
  if (filter.metrics || filter.logs) {
    if (absl::Status status = ReadHistory(filter, after, horizon, page); !status.ok()) return status;
  }
  std::stable_sort(page.items.begin(), page.items.end(),
                   [](const StreamItem& a, const StreamItem& b) { return a.sequence < b.sequence; });
  while (!page.items.empty() && page.items.back().sequence > horizon) page.items.pop_back();
  page.next = page.more ? horizon : last_sequence_;
  return page;
}

TailSearch Ledger::StartTail(const StreamFilter& filter, uint64_t count) const {
  return {.filter = filter,
          .count = count,
          .before = last_sequence_ + 1,
          .found = count == 0,
          .after = last_sequence_,
          .skip_lines = 0};
}

absl::Status Ledger::FindTail(TailSearch& search) {
  const StreamFilter& filter = search.filter;
  store::HistoryPage page;
  if (filter.metrics || filter.logs) {
    auto read = history_->ReadBack({filter.job, filter.metrics, filter.logs, filter.rank}, search.before, kPageItems,
                                   kPageBytes);
    if (!read.ok()) return read.status();
    page = *std::move(read);
  }
  const std::vector<uint64_t>& events = EventsOf(filter.job);
  auto events_end = filter.events ? std::lower_bound(events.begin(), events.end(), search.before) : events.begin();
  auto item = page.items.begin();
  for (size_t looked_at = 0; looked_at < kPageItems && !search.found; ++looked_at) {
    const bool no_item = item == page.items.end();
    if (no_item && page.more) return absl::OkStatus();  // older events come after the next page
    const uint64_t event = events_end == events.begin() ? 0 : *std::prev(events_end);
    uint64_t cost = 1;
    if (no_item && event == 0) {  // there are fewer
      search.found = true;
      search.after = 0;
      return absl::OkStatus();
    }
    if (no_item || event > item->sequence) {
      search.before = event;
      --events_end;
    } else {
      search.before = item->sequence;
      if (const auto* chunk = std::get_if<LogChunk>(&item->body)) cost = LinesOf(*chunk);
      ++item;
    }
    search.found = cost >= search.count;
    search.after = search.before - 1;
    search.skip_lines = search.found ? cost - search.count : 0;
    search.count -= std::min(cost, search.count);
  }
  return absl::OkStatus();
}

std::set<JobId> Ledger::Jobs() const {
  const std::vector<JobId> history = history_->Jobs();
  std::set<JobId> jobs(history.begin(), history.end());
  for (const auto& [job, events] : events_of_job_) jobs.insert(job);
  return jobs;
}

absl::Status Ledger::Forget(const JobId& job, uint64_t before) {
  // Otherwise staged input of its ranks would bring the job back.
  if (absl::Status status = Flush(); !status.ok()) return status;
  if (absl::Status status = history_->Forget(job); !status.ok()) return status;
  step_times_.erase(job);
  const auto found = events_of_job_.find(job);
  if (found == events_of_job_.end()) return absl::OkStatus();
  std::vector<store::Change> changes;
  std::set<uint64_t> gone;
  for (const uint64_t sequence : found->second) {
    if (sequence >= before) continue;
    changes.push_back({EventKey(sequence), std::nullopt});
    gone.insert(sequence);
  }
  std::vector<store::ChangeGroup> groups;
  AddGroups(std::move(changes), groups);
  if (!groups.empty()) {
    if (absl::Status status = state_->Commit(term_, groups); !status.ok()) return status;
  }
  const auto is_gone = [&](uint64_t sequence) { return gone.contains(sequence); };
  std::erase_if(found->second, is_gone);
  std::erase_if(events_, is_gone);
  if (found->second.empty()) events_of_job_.erase(found);
  return absl::OkStatus();
}

}  // namespace muster::server
