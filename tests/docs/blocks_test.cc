// How blocks of a page are read.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/docs/blocks.h"

namespace muster::docs {
namespace {

TEST(Blocks, AreReadAsTheirCommentsSay) {
  const Blocks page = BlocksOf(
      "```sh\na\n```\n\n<!-- not typed: needs root; no engine -->\n```sh\nsudo b\n```\n```yaml\n# job.yaml\nname: c\n"
      "```\n```text\nprinted\n```\n<!-- on the second machine -->\n<!-- typed with: H=x S=y -->\n"
      "```sh\nexport H=x S=y\n```\n<!-- typed as: cp a b -->\n```sh\nscp a b:\n```\n<!-- typed as: x "
      "-->\ntext\n\n1. In a list\n\n   <!-- first: e -->\n   <!-- then: f -->\n   ```sh\n   d\n     d\n   ```\n"
      "<!-- saved as: a/b -->\n```sh\n#!/bin/sh\n```\n<!-- typed in a job -->\n```sh\ng\n```\n");
  EXPECT_EQ(page.mistakes, std::vector<std::string>{});
  const std::vector<Block>& blocks = page.blocks;
  ASSERT_EQ(blocks.size(), 8u);
  EXPECT_EQ(blocks[0].text, "a\n");
  EXPECT_EQ(blocks[0].not_typed, "");
  EXPECT_EQ(blocks[1].not_typed, "needs root");
  EXPECT_EQ(blocks[2].save_as, "job.yaml");
  EXPECT_TRUE(blocks[3].second_machine);
  EXPECT_EQ(blocks[3].replaced, (std::vector<std::string>{"H=x", "S=y"}));
  EXPECT_EQ(blocks[4].text, "cp a b\n");
  EXPECT_FALSE(blocks[4].second_machine);
  EXPECT_EQ(blocks[5].text, "d\n  d\n");
  EXPECT_EQ(blocks[5].first, "e\n");
  EXPECT_EQ(blocks[5].then, "f\n");
  EXPECT_EQ(blocks[6].save_as, "~/a/b");
  EXPECT_EQ(blocks[7].text, "cat >.in_a_job <<'EOF'\ng\nEOF\nmuster run -- bash -eu .in_a_job\n");
}

TEST(Blocks, AConsoleIsCommandsFilesAndWhatIsPrinted) {
  const std::vector<Block> blocks =
      BlocksOf(
          "```console\n$ cat a.yaml\nname: a\nsteps: 1\n$ muster ps\nJOB\n...\n$ muster nodes\n```\n"
          "<!-- output varies -->\n```console\n$ muster top\nJOB\n```\n")
          .blocks;
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].save_as, "a.yaml");
  EXPECT_EQ(blocks[0].text, "name: a\nsteps: 1\n");
  EXPECT_EQ(blocks[1].text, "muster ps\n");
  EXPECT_EQ(blocks[1].prints, "JOB\n...\n");
  EXPECT_EQ(blocks[1].line, 5);
  EXPECT_EQ(blocks[2].prints, "");
  EXPECT_EQ(blocks[3].prints, std::nullopt);
}

TEST(Blocks, FieldsAreMadeWholeJobs) {
  const std::vector<Block> blocks =
      BlocksOf(
          "```yaml\nmodel: {family: llama}\nsteps: 3\nmodel: {family: resnet}\n```\n"
          "<!-- beside: data: {images: i.bin} -->\n```yaml\ncheckpoint:\n  keep: 3\n```\n")
          .blocks;
  ASSERT_EQ(blocks.size(), 2u);
  const std::string whole = "apiVersion: muster/v1\nkind: Job\nworkload: exec\n";
  EXPECT_EQ(BlocksOf("```yaml\n" + whole + "```\n").blocks[0].jobs, std::vector<std::string>{whole});
  const std::string head = "apiVersion: muster/v1\nkind: Job\nname: shown\n";
  const std::string data = "data: {tokens: train.bin}\nbatch: {sequences: 64}\n";
  EXPECT_EQ(blocks[0].jobs, (std::vector<std::string>{head + data + "model: {family: llama}\nsteps: 3\n",
                                                      head + data + "steps: 100\nmodel: {family: resnet}\n"}));
  EXPECT_EQ(blocks[1].jobs,
            std::vector<std::string>{head + "model: {family: gpt2, size: small}\nbatch: {sequences: 64}\nsteps: 100\n"
                                            "checkpoint:\n  keep: 3\ndata: {images: i.bin}\n"});
}

// None is left out without one of the reasons, which cannot be given for any block.
TEST(Blocks, ThatAreNotTypedHaveAReason) {
  const auto mistakes = [](const std::string& page) { return BlocksOf(page).mistakes; };
  EXPECT_EQ(mistakes("\n```\na\n```\n"), std::vector<std::string>{"2: a block without a language"});
  EXPECT_EQ(mistakes("```bash\na\n```\n"), std::vector<std::string>{"1: a block of the unknown language bash"});
  EXPECT_EQ(mistakes("<!-- not typed: takes long -->\n```sh\na\n```\n"),
            std::vector<std::string>{"2: \"takes long\" is no reason not to type a block"});
  EXPECT_EQ(mistakes("<!-- not typed: needs root; it does -->\n```sh\nmuster ps\n```\n"),
            std::vector<std::string>{"2: \"needs root\" is for blocks with (sudo|systemctl) |--run-as-owner"});
  EXPECT_EQ(mistakes("<!-- not typed: is a benchmark -->\n```sh\npython3 bench/a.py\n```\n"),
            std::vector<std::string>{});
  EXPECT_EQ(mistakes("<!-- not typed: is run by //tests/a:b -->\n```sh\na\n```\n"), std::vector<std::string>{});
}

TEST(Matches, DotsStandForAnything) {
  EXPECT_TRUE(Matches("a  b\nc\n", "a  b\nc\n"));
  EXPECT_FALSE(Matches("a b\nc\n", "a b\n"));
  EXPECT_FALSE(Matches("a b\n", "a b\nc\n"));
  EXPECT_FALSE(Matches("a (b)\n", "a .b.\n"));
  EXPECT_TRUE(Matches("a\n\nb   \nc\nd\n", "a\n...\nd\n"));
  EXPECT_TRUE(Matches("a\nd\n", "a\n...\nd\n"));
  EXPECT_FALSE(Matches("a\nd\ne\n", "a\n...\nd\n"));
  EXPECT_TRUE(Matches("one two three\n", "one ... three\n"));
  EXPECT_FALSE(Matches("one two three\n", "one ... four\n"));
  EXPECT_TRUE(Matches("\n", ""));
}

}  // namespace
}  // namespace muster::docs
