#include "tests/docs/readers.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace muster::docs {
namespace {

// Tokens, a job of a second or two, and a way to wait.
constexpr char kData[] = R"(
cp /usr/share/common-licenses/GPL-3 book.txt
muster data prepare book.txt train.bin --validation val.bin
cat > job.yaml <<'EOF'
apiVersion: muster/v1
kind: Job
name: gpt2
model: {family: gpt2, layers: 2, heads: 2, width: 32, context: 16, vocabulary: 257}
data: {tokens: train.bin, validation: val.bin}
batch: {sequences: 4}
steps: 20
checkpoint: {path: "runs/{job}", every_steps: 10}
EOF
)";

constexpr char kService[] = "muster local up --slots 2\n";

// PNG files in pets/{train,test}/{cat,dog,zebra}, and CIFAR-10's records.
constexpr char kImages[] = R"(
python3 - <<'EOF'
import os, random, struct, zlib
random.seed(1)
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def png(path, side=8):
    rows = b"".join(b"\0" + random.randbytes(3 * side) for _ in range(side))
    with open(path, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
                  chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for split, count in ("train", 20), ("test", 4):
    for kind in "cat", "dog", "zebra":
        os.makedirs(f"pets/{split}/{kind}")
        for i in range(count): png(f"pets/{split}/{kind}/{i}.png")
os.makedirs("cifar-10-batches-bin")
for name in "data_batch_1", "test_batch":
    with open(f"cifar-10-batches-bin/{name}.bin", "wb") as out:
        for i in range(64): out.write(bytes([i % 10]) + random.randbytes(3072))
EOF
)";

// Byte-level tokenizers in the layout of Hugging Face.
constexpr char kTokenizers[] = R"(
python3 - <<'EOF'
import json, os
points, extra = {}, 256
for byte in range(256):
    shown = 32 < byte < 127 or 160 < byte != 173
    points[byte], extra = (chr(byte), extra) if shown else (chr(extra), extra + 1)
vocabulary = {points[byte]: byte for byte in range(256)}
end = {"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
       "normalized": False, "special": True}
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
for folder in "SmolLM2-135M", "Llama-3.2-1B":
    os.makedirs(folder)
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
               "pre_tokenizer": level, "post_processor": None, "decoder": level,
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                         "vocab": vocabulary, "merges": []}}, open(f"{folder}/tokenizer.json", "w"))
EOF
)";

// A coordinator as an administrator runs it, at $HOME/coordinator.
constexpr char kCoordinator[] = R"(
muster coordinator init --state-dir $HOME/coordinator --host $HOST --host 127.0.0.1
muster-coordinator --state-dir $HOME/coordinator --listen unix:$HOME/c/c.sock --listen $HOST:7171 \
  --web-address 127.0.0.1:7080
)";

const std::map<std::string, Reader>& Readers() {
  // For pages whose commands need more than kData and kService.
  static const auto& readers = *new std::map<std::string, Reader>{
      {"README.md", {}},
      {"docs/quickstart.md", {}},
      {"docs/checkpoints.md",
       {absl::StrCat(kData, kService, R"(
muster submit -f job.yaml
export ENDED=$(muster ps -a -o name)
muster export @last gpt2-hf
export RUNNING=$(muster submit -d job.yaml --set steps=1000000 --set checkpoint.every_steps=1000000 -o name)
until muster metrics @last -o json | grep loss >/dev/null; do read -rt 0.1 <> <(:) || true; done
)"),
        {{"runs/gpt2-x7f2", "runs/$RUNNING"}, {"runs/gpt2-k2m4", "runs/$ENDED"}, {"gpt2-x7f2", "$RUNNING"}}}},
      {"docs/configuration.md",
       {absl::StrCat(kCoordinator, R"(
mkdir -p .config/muster
muster --address unix:$HOME/c/c.sock coordinator token create --role submitter --user ann --ttl 1d \
  -o .config/muster/ann.token
)"),
        {{"gpu-head:7070", "$HOST:7171"}, {"/home/ann", "$HOME"}}}},
      {"docs/custom_models.md",
       {absl::StrCat(kImages,
                     "mkdir -p examples/custom_model/build\n"
                     "cp -L $SOURCES/examples/custom_model/{job.yaml,libresidual.so,libtwo_towers.so} "
                     "examples/custom_model/build/\n"
                     "mv examples/custom_model/build/job.yaml cifar-10-batches-bin examples/custom_model/\n"
                     "chmod u+w examples/custom_model/job.yaml\n"
                     "sed -i 's/^steps: .*/steps: 10/' examples/custom_model/job.yaml\n"),
        {}}},
      {"docs/data.md",
       {absl::StrCat(kData, kService, kTokenizers,
                     "muster data prepare book.txt train.bin --validation val.bin --tokenizer SmolLM2-135M --force\n"
                     "muster submit -f job.yaml --set model.vocabulary=257\n"
                     "rm train.bin val.bin\ncp book.txt a.txt\ncp book.txt b.txt\n"
                     "cp book.txt corpus.txt\n"),
        {}}},
      {"docs/exec.md", {"mkdir project\n", {{"/shared/project", "$HOME/project"}}}},
      {"docs/finetuning.md",
       {absl::StrCat(kData, kService, R"(
muster submit -f job.yaml --set name=llama --set steps=1 --set model.family=llama --set model.inner=64
muster export @last llama
)"),
        {{"/models/llama-3.2-1b", "$HOME/llama"}}}},
      {"docs/images.md", {absl::StrCat(kImages, kService), {}}},
      {"docs/models.md",
       {absl::StrCat(kData, kService, kImages, "muster submit -f job.yaml --set steps=1\nmuster export @last gpt2\n"),
        {}}},
      {"docs/monitoring.md", {}},
      {"docs/networks.md",
       {absl::StrCat(kData, "muster local up --nodes 2 --slots 1\nmuster submit -f job.yaml\n"), {}}},
      {"docs/notices.md",
       {"mkdir -p -m 700 etc/muster\n(umask 077; echo secret > etc/muster/ops.secret)\n"
        "printf '#!/bin/sh\\n' > etc/muster/mail\nchmod 700 etc/muster/mail\n",
        {{"/etc/muster", "$HOME/etc/muster"}}}},
      {"docs/tracking.md",
       {"mkdir -p -m 700 etc/muster\n(umask 077; echo token > etc/muster/mlflow.token)\n",
        {{"/etc/muster", "$HOME/etc/muster"}}}},
      {"docs/operations.md",
       {absl::StrCat(kCoordinator, R"(
mkdir backups muster-0.1.0-linux-x86_64
cp -r $(dirname $(type -P muster)) muster-0.1.0-linux-x86_64/bin
tar -I 'gzip -1' -cf muster-0.1.0-linux-x86_64.tar.gz muster-0.1.0-linux-x86_64
)"),
        {{"/var/backups", "$HOME/backups"},
         {"/var/backups/muster-2026-11-26.db", "$HOME/backups/muster-$(date +%F).db"},
         {"/var/lib/muster/coordinator", "$HOME/coordinator"},
         {"/run/muster-coordinator/coordinator.sock", "$HOME/c/c.sock"},
         {" -o muster-coordinator -g muster-coordinator", ""},
         {"systemctl stop muster-coordinator", "stop muster-coordinator"},
         {"systemctl start muster-coordinator",
          "muster-coordinator --state-dir $HOME/coordinator --listen unix:$HOME/c/c.sock"}}}},
      {"docs/performance.md",
       {absl::StrCat(kData, kService, R"(
cat > xl.yaml <<'EOF'
apiVersion: muster/v1
kind: Job
name: xl
model: {family: gpt2, size: xl}
data: {tokens: train.bin}
precision: {compute: bf16}
activation_checkpointing: true
batch: {sequences: 8}
steps: 1000
EOF
)"),
        {}}},
      {"docs/quotas.md",
       {absl::StrCat(kData, kService, R"(
export FIRST=$(muster submit -d job.yaml -o name) SECOND=$(muster submit -d job.yaml --set seed=2 -o name)
muster watch $FIRST && muster watch $SECOND
muster label $FIRST old=yes
)"),
        // As long as a reader's, a sweep takes minutes.
        {{"gpt2-x7f2", "$FIRST"},
         {"gpt2-k2m4", "$SECOND"},
         {"--trials 16 --rungs 100,200,400", "--trials 4 --rungs 5,10"},
         {"--nodes gpu-7,gpu-8", "--nodes all"},
         {"--nodes gpu-7", "--nodes all"},
         {"2030-12-01T08:00", "30d"}}}},
      {"docs/security.md",
       {R"(
mkdir -p var/lib run etc data checkpoints scratch models
)",
        {{"/var/lib/muster", "$HOME/var/lib/muster"},
         {"/run/muster", "$HOME/run/muster"},
         {"gpu-head", "$HOST"},
         {"10.0.0.5", "127.0.0.1"},
         {"--data-roots /data", "--data-roots $HOME/data"},
         {"/checkpoints,/scratch", "$HOME/checkpoints,$HOME/scratch"},
         {"/opt/models", "$HOME/models"},
         {"muster-worker ...",
          "muster-worker --coordinator $HOST:7070 --state-dir $HOME/var/lib/muster-worker --run-dir "
          "$HOME/var/lib/muster-worker-run"}}}},
      {"docs/web.md",
       {absl::StrCat(kCoordinator, R"(
export ADMINISTRATOR=unix:$HOME/c/c.sock
muster --address $ADMINISTRATOR coordinator token create --role submitter --user ann --ttl 1d -o ann.token
export MUSTER_TOKEN=$(cat ann.token)
)",
                     kData, R"(
export ENDED=$(muster --address $ADMINISTRATOR submit -d job.yaml -o name)
muster --address $ADMINISTRATOR cancel $ENDED
)"),
        {{"jobs/ID/", "jobs/$ENDED/"}}}},
  };
  return readers;
}

}  // namespace

Reader ReaderOf(const std::string& page) {
  const auto found = Readers().find(page);
  Reader reader = found == Readers().end() ? Reader{absl::StrCat(kData, kService), {}} : found->second;
  // Daemons of which a page shows one flag.
  reader.stands_for.insert(
      {{"muster-coordinator ...", "muster-coordinator --state-dir $HOME/d --listen unix:$HOME/d-socket/c.sock"},
       {"muster-worker ...",
        "muster-worker --coordinator unix:$HOME/d-socket/c.sock --state-dir $HOME/w --run-dir $HOME/w-run"}});
  return reader;
}

}  // namespace muster::docs
