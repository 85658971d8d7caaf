// The tarball and the Debian packages of tools/package.sh, made of the programs of this build: what is in them, what
// they depend on, and that the trainer finds its LibTorch wherever they are unpacked.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/testing/program.h"
#include "testing/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kPackaged[] = "9.8.7~test";
const std::vector<std::string>& Packages() {
  static const auto& packages =
      *new std::vector<std::string>{"muster-cli", "muster-coordinator", "muster-worker", "muster-trainer"};
  return packages;
}

cli::Ended Shell(const std::string& line) {
  cli::Program program({"/bin/bash", "-c", line}, {{"HOME", "/nonexistent"}, {"LC_ALL", "C.UTF-8"}});
  return program.Wait(absl::Minutes(10));
}

std::string Read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> LibrariesOf(const std::string& file) {
  const std::string lines =
      Shell(absl::StrCat("readelf -d '", file, "' | sed -n 's/.*(NEEDED).*\\[\\(.*\\)\\]/\\1/p'")).out;
  return absl::StrSplit(lines, '\n', absl::SkipEmpty());
}

std::string RunpathOf(const std::string& file) {
  return Shell(absl::StrCat("readelf -d '", file, "' | sed -n 's/.*RUNPATH.*\\[\\(.*\\)\\]/\\1/p' | tr -d '\\n'")).out;
}

class PackagesTest : public ::testing::Test {
 protected:
  // Packaged once; unpacked to a folder for each package.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    const std::string bin = folder_->path() + "/bin";
    fs::create_directories(bin);
    for (const char* target : {"cli/muster", "coordinator/muster-coordinator", "worker/agent/muster-worker",
                               "worker/shim/muster-step", "worker/exec/muster-exec", "worker/trainer/muster-trainer"}) {
      const fs::path program = fs::canonical(cli::ProgramPath(target));
      fs::create_symlink(program, bin + "/" + program.filename().string());
    }
    // The wheel that this build links: the trainer searches there, too.
    const std::vector<std::string> searched = absl::StrSplit(RunpathOf(bin + "/muster-trainer"), ':');
    const std::string wheel = fs::path(searched.back()).parent_path().parent_path();
    const std::string script = fs::canonical("WORKSPACE").parent_path().string() + "/tools/package.sh";
    const cli::Ended made =
        Shell(absl::StrCat("MUSTER_TORCH_CPU='", wheel, "' SOURCE_DATE_EPOCH=1700000000 '", script,
                           "' --fast --version ", kPackaged, " --programs '", bin, "' '", Out(), "'"));
    ASSERT_EQ(made.code, 0) << made.out << made.err;
    messages_ = made.err;
    for (const std::string& package : Packages()) {
      const cli::Ended unpacked = Shell(absl::StrCat("dpkg-deb -R '", Deb(package), "' '", Root(package), "'"));
      ASSERT_EQ(unpacked.code, 0) << unpacked.err;
    }
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string Out() { return folder_->path() + "/out"; }
  static std::string Deb(const std::string& package) {
    return absl::StrCat(Out(), "/", package, "_", kPackaged, "_amd64.deb");
  }
  static std::string Root(const std::string& package) { return absl::StrCat(folder_->path(), "/", package); }
  static std::string Field(const std::string& package, const std::string& field) {
    std::string value = Shell(absl::StrCat("dpkg-deb -f '", Deb(package), "' ", field)).out;
    if (!value.empty() && value.back() == '\n') value.pop_back();
    return value;
  }
  // Files and links, without folders: "opt/muster/bin/muster".
  static std::set<std::string> FilesOf(const std::string& package) {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(Root(package))) {
      const std::string path = fs::relative(entry.path(), Root(package));
      if (!entry.is_directory() && !absl::StartsWith(path, "DEBIAN/")) files.insert(path);
    }
    return files;
  }

  static inline std::unique_ptr<TemporaryFolder> folder_;
  static inline std::string messages_;  // of tools/package.sh
};

TEST_F(PackagesTest, ChecksumsAreOfAllFiles) {
  EXPECT_EQ(Shell(absl::StrCat("cd '", Out(), "' && sha256sum --quiet -c SHA256SUMS")).code, 0);
  const std::vector<std::string> lines = absl::StrSplit(Read(Out() + "/SHA256SUMS"), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), Packages().size() + 1);
}

// The programs of this build are an example: only a release has Debian's libraries inside.
TEST_F(PackagesTest, AWarningNamesTheLibrariesThatTheTarballDoesNotBring) {
  std::set<std::string> all = LibrariesOf(Root("muster-cli") + "/opt/muster/bin/muster");
  all.merge(LibrariesOf(Root("muster-coordinator") + "/opt/muster/bin/muster-coordinator"));
  const bool linked = std::none_of(all.begin(), all.end(), [](const std::string& library) {
    return absl::StartsWith(library, "libgrpc") || absl::StartsWith(library, "libsqlite3");
  });
  const size_t at =
      messages_.find("package: warning: the programs are not linked statically: the tarball runs only on ");
  EXPECT_EQ(at == std::string::npos, linked) << messages_;
  if (linked) return;
  const std::string line = messages_.substr(at, messages_.find('\n', at) - at);
  for (const std::string& library : all) {
    const bool named = absl::StrContains(line + " ", absl::StrCat(" ", library, " "));
    const bool debians = absl::StartsWith(library, "libgrpc") || absl::StartsWith(library, "libsqlite3") ||
                         absl::StartsWith(library, "libssl");
    if (debians) {
      EXPECT_TRUE(named) << library << ": " << line;
    }
    if (library == "libc.so.6" || library == "libstdc++.so.6") {
      EXPECT_FALSE(named) << line;
    }
  }
}

TEST_F(PackagesTest, EachFileIsInOnePackage) {
  std::map<std::string, std::string> owners;
  for (const std::string& package : Packages()) {
    for (const std::string& file : FilesOf(package)) {
      EXPECT_TRUE(owners.emplace(file, package).second) << file << " is in " << owners[file] << " and " << package;
    }
  }
  const std::map<std::string, std::string> expected = {
      {"opt/muster/bin/muster", "muster-cli"},
      {"usr/bin/muster", "muster-cli"},
      {"usr/share/bash-completion/completions/muster", "muster-cli"},
      {"opt/muster/share/muster/examples/gpt2_tiny.yaml", "muster-cli"},
      {"opt/muster/bin/muster-coordinator", "muster-coordinator"},
      {"usr/bin/muster-coordinator", "muster-coordinator"},
      {"lib/systemd/system/muster-coordinator.service", "muster-coordinator"},
      {"usr/lib/sysusers.d/muster-coordinator.conf", "muster-coordinator"},
      {"etc/muster/coordinator.env", "muster-coordinator"},
      {"opt/muster/bin/muster-worker", "muster-worker"},
      {"opt/muster/bin/muster-step", "muster-worker"},
      {"opt/muster/bin/muster-exec", "muster-worker"},
      {"lib/systemd/system/muster-worker.service", "muster-worker"},
      {"usr/lib/sysusers.d/muster-worker.conf", "muster-worker"},
      {"etc/muster/worker.env", "muster-worker"},
      {"opt/muster/bin/muster-trainer", "muster-trainer"},
      {"opt/muster/site/torch/lib/libtorch_cpu.so", "muster-trainer"},
      {"opt/muster/site/torch/lib/libgomp.so.1", "muster-trainer"},
      {"opt/muster/include/muster/model.h", "muster-trainer"},
  };
  for (const auto& [file, package] : expected) EXPECT_EQ(owners[file], package) << file;
  // What a machine without a compiler has no use for.
  for (const auto& [file, package] : owners) {
    EXPECT_FALSE(absl::StrContains(file, "libtorch_python") || absl::EndsWith(file, ".a")) << file;
  }
}

TEST_F(PackagesTest, TheWheelHasTheClient) {
  const cli::Ended imported = Shell(absl::StrCat(
      "cd '", Root("muster-cli"), "/opt/muster/share/muster' && wheel=$(echo muster-*-py3-none-any.whl) && ",
      "/usr/bin/python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import muster.versions' $wheel && ",
      "/usr/bin/python3 -m zipfile -l $wheel"));
  EXPECT_EQ(imported.code, 0) << imported.out << imported.err;
  for (const char* file : {"muster/client.py ", "muster/proto/jobs_service_pb2_grpc.py "}) {
    EXPECT_TRUE(absl::StrContains(imported.out, file)) << imported.out;
  }
}

TEST_F(PackagesTest, FilesBelongToRootAndOnlyRootWritesThem) {
  for (const std::string& package : Packages()) {
    const std::vector<std::string> lines =
        absl::StrSplit(Shell(absl::StrCat("TZ=UTC dpkg-deb -c '", Deb(package), "'")).out, '\n', absl::SkipEmpty());
    EXPECT_GT(lines.size(), 5u);
    for (const std::string& line : lines) {
      EXPECT_TRUE(absl::StrContains(line, " root/root ")) << line;
      EXPECT_TRUE(line[0] == 'l' || absl::StartsWith(line.substr(1), "rwxr-xr-x") ||
                  absl::StartsWith(line.substr(1), "rw-r--r--"))
          << line;
      // SOURCE_DATE_EPOCH, or older: LibTorch has the times of its wheel, cut to that.
      EXPECT_TRUE(absl::StrContains(line, " 2023-11-14 22:13 ")) << line;
    }
  }
}

TEST_F(PackagesTest, ControlFilesSayWhatIsNeeded) {
  for (const std::string& package : Packages()) {
    EXPECT_EQ(Field(package, "Version"), kPackaged);
    EXPECT_EQ(Field(package, "Architecture"), "amd64");
    const std::string depends = Field(package, "Depends");
    EXPECT_TRUE(absl::StrContains(depends, "libc6 (>= 2.")) << depends;
    EXPECT_TRUE(absl::StrContains(depends, "libstdc++6 (>= ")) << depends;
    EXPECT_FALSE(absl::StrContains(depends, "@") || absl::StrContains(depends, "-dev")) << depends;
    const bool daemon = package == "muster-coordinator" || package == "muster-worker";
    EXPECT_EQ(absl::StrContains(depends, "systemd | systemd-standalone-sysusers"), daemon) << depends;
  }
  EXPECT_EQ(Field("muster-worker", "Recommends"), absl::StrCat("muster-trainer (= ", kPackaged, ")"));
  EXPECT_EQ(Field("muster-trainer", "Breaks"), absl::StrCat("muster-worker (<< ", kPackaged, ")"));
}

TEST_F(PackagesTest, DaemonsAreConfiguredByTheirOperators) {
  for (const std::string daemon : {"coordinator", "worker"}) {
    const std::string root = Root("muster-" + daemon);
    EXPECT_EQ(Read(root + "/DEBIAN/conffiles"), absl::StrCat("/etc/muster/", daemon, ".env\n"));
    // Nothing is set until somebody sets it.
    for (const absl::string_view line :
         absl::StrSplit(Read(absl::StrCat(root, "/etc/muster/", daemon, ".env")), '\n')) {
      EXPECT_TRUE(line.empty() || line[0] == '#') << line;
    }
    const std::string unit = Read(absl::StrCat(root, "/lib/systemd/system/muster-", daemon, ".service"));
    EXPECT_TRUE(absl::StrContains(unit, absl::StrCat("\nExecStart=/opt/muster/bin/muster-", daemon, " "))) << unit;
    EXPECT_TRUE(absl::StrContains(unit, absl::StrCat("\nUser=muster-", daemon, "\n"))) << unit;
    EXPECT_TRUE(absl::StartsWith(Read(absl::StrCat(root, "/usr/lib/sysusers.d/muster-", daemon, ".conf")),
                                 absl::StrCat("u muster-", daemon, " ")));
    for (const char* script : {"postinst", "prerm", "postrm"}) {
      const std::string path = absl::StrCat(root, "/DEBIAN/", script);
      EXPECT_EQ(Shell(absl::StrCat("sh -n '", path, "'")).code, 0) << path;
      EXPECT_EQ(Shell(absl::StrCat("grep -wE 'systemctl.*(start|enable|restart)' '", path,
                                   "' | grep -v -w "
                                   "-e try-restart -e echo"))
                    .out,
                "")
          << path;
      // State goes with a purge only.
      EXPECT_EQ(absl::StrContains(Read(path), "rm -rf /var/lib/muster/"), std::string(script) == "postrm") << path;
    }
    EXPECT_TRUE(absl::StrContains(Read(root + "/DEBIAN/postrm"), "if [ \"$1\" = purge ]; then\n")) << daemon;
  }
}

TEST_F(PackagesTest, TheTrainerFindsLibTorchWhereverItIs) {
  const std::string root = Root("muster-trainer") + "/opt/muster", trainer = root + "/bin/muster-trainer";
  const std::vector<std::string> searched = absl::StrSplit(RunpathOf(trainer), ':');
  EXPECT_FALSE(searched.empty());
  for (const std::string& path : searched) EXPECT_TRUE(absl::StartsWith(path, "$ORIGIN/../site/")) << path;
  const std::set<std::string> system = {"libc.so.6",     "libm.so.6",       "libdl.so.2",     "librt.so.1",
                                        "libgcc_s.so.1", "libpthread.so.0", "libstdc++.so.6", "ld-linux-x86-64.so.2"};
  for (const auto& entry : fs::directory_iterator(root + "/site/torch/lib")) {
    EXPECT_EQ(RunpathOf(entry.path()), "$ORIGIN") << entry.path();
    for (const std::string& library : LibrariesOf(entry.path())) {
      EXPECT_TRUE(system.contains(library) || fs::exists(root + "/site/torch/lib/" + library))
          << entry.path() << " needs " << library;
    }
  }
  // By their names: an address, too, may have "c10" in it.
  const cli::Ended found = Shell(absl::StrCat("env -i ldd '", trainer, "' | grep -E '^\\s*lib(torch|c10|gomp)'"));
  EXPECT_EQ(found.code, 0);
  for (const absl::string_view line : absl::StrSplit(found.out, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StrContains(line, absl::StrCat(" => ", root, "/"))) << line;
  }
  const cli::Ended checked = Shell(absl::StrCat("env -i '", trainer, "' --self-check"));
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  EXPECT_TRUE(absl::StrContains(checked.out, "LibTorch")) << checked.out;
}

TEST_F(PackagesTest, LicensesOfWhatIsInside) {
  for (const std::string& package : Packages()) {
    const std::string text = Read(absl::StrCat(Root(package), "/usr/share/doc/", package, "/copyright"));
    for (const char* part :
         {"Apache License", "==== libgrpc++-dev\n", "==== libssl-dev\n", "==== libsqlite3-dev\n", "==== uplot\n"}) {
      EXPECT_TRUE(absl::StrContains(text, part)) << package << ": " << part;
    }
    EXPECT_EQ(absl::StrContains(text, "From PyTorch:"), package == "muster-trainer");
  }
}

// Relative links of a page that lead to no file, a line each. `[](` begins a function of C++.
std::string BrokenLinks(const fs::path& page) {
  const std::string text = Read(page);
  const std::regex link(R"([^[]\]\(([^)\s#`]+)[^)`]*\))");
  std::string broken;
  for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
    const std::string target = (*at)[1];
    if (absl::StrContains(target, ":") || fs::exists(page.parent_path() / target)) continue;
    absl::StrAppend(&broken, page.string(), ": ", target, "\n");
  }
  return broken;
}

TEST_F(PackagesTest, LinksOfThePagesWork) {
  const fs::path docs = Root("muster-cli") + "/opt/muster/share/doc/muster/docs";
  ASSERT_TRUE(fs::exists(docs / "operations.md"));
  for (const auto& entry : fs::recursive_directory_iterator(docs)) {
    if (entry.path().extension() == ".md") {
      EXPECT_EQ(BrokenLinks(entry.path()), "");
    }
  }
  const std::string tarball = folder_->path() + "/tarball";
  fs::create_directories(tarball);
  const cli::Ended unpacked = Shell(absl::StrCat("tar -xzf '", Out(), "'/muster-*.tar.gz --strip-components=1 -C '",
                                                 tarball, "' --wildcards '*/share'"));
  ASSERT_EQ(unpacked.code, 0) << unpacked.err;
  EXPECT_EQ(BrokenLinks(tarball + "/share/muster/systemd/README.md"), "");
  EXPECT_TRUE(fs::exists(tarball + "/share/doc/muster/docs/notices.md"));
}

TEST_F(PackagesTest, TheTarballIsOneFolder) {
  const cli::Ended listed = Shell(absl::StrCat("tar -tzf '", Out(), "'/muster-*.tar.gz"));
  const std::string top = absl::StrCat("muster-", kPackaged, "-linux-x86_64/");
  std::set<std::string> files;
  for (const absl::string_view line : absl::StrSplit(listed.out, '\n', absl::SkipEmpty())) {
    ASSERT_TRUE(absl::StartsWith(line, top)) << line;
    files.emplace(line.substr(top.size()));
  }
  for (const char* file :
       {"bin/muster", "bin/muster-coordinator", "bin/muster-worker", "bin/muster-step", "bin/muster-exec",
        "bin/muster-trainer", "site/torch/lib/libtorch_cpu.so", "share/muster/systemd/muster-worker.service",
        "share/muster/examples/gpt2_tiny.yaml", "share/doc/muster/LICENSE", "share/doc/muster/VERSION",
        "share/doc/muster/licenses/libssl-dev", "lib/cmake/muster-sdk/muster-sdk-config.cmake"}) {
    EXPECT_TRUE(files.contains(file)) << file;
  }
}

}  // namespace
}  // namespace muster
