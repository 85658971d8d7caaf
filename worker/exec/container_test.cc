#include "worker/exec/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::exec {
namespace {

using ::testing::ElementsAre;

const Container kContainer = {.image = "python:3.12",
                              .workdir = "/home/ann/a b",
                              .rank_dir = "/run/r",
                              .variables = {"HOME=/root", "PATH=/bin", "RANK=3", "WORLD_SIZE=4"}};

TEST(ContainerArguments, FillsInThePlacesOfTheCommand) {
  EXPECT_THAT(ContainerArguments(
                  {"podman", "run", "--env={variable}", "-v={rank_dir}:{rank_dir}", "--workdir={workdir}", "{image}"},
                  kContainer, {"python", "train.py", "--lr={image}"}),
              ElementsAre("podman", "run", "--env=RANK", "--env=WORLD_SIZE", "-v=/run/r:/run/r",
                          "--workdir=/home/ann/a b", "python:3.12", "python", "train.py", "--lr={image}"));
}

TEST(ContainerArguments, TheJobMaySetWhatElseIsTheImages) {
  Container container = kContainer;
  container.of_job = {"PATH", "RANK"};
  EXPECT_THAT(ContainerArguments({"run", "--env={variable}", "{image}"}, container, {"a"}),
              ElementsAre("run", "--env=PATH", "--env=RANK", "--env=WORLD_SIZE", "python:3.12", "a"));
}

TEST(ContainerArguments, WhatIsFilledInIsNotReadAgain) {
  Container container = kContainer;
  container.image = "{workdir}";
  EXPECT_THAT(ContainerArguments({"run", "{image}"}, container, {"a"}), ElementsAre("run", "{workdir}", "a"));
}

}  // namespace
}  // namespace muster::exec
