#include "engine/comm/rank_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

struct Case {
  const char* what;
  Environment environment;
  Launcher launcher = Launcher::kNone;
  RankContext context = {};
  std::string master = {};
  int port = kDefaultMasterPort;
  const char* refused = nullptr;
  const char* job = nullptr;  // null: any
};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}
Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

const Environment kTorchrunOne = {{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "gpu01"},
                                  {"MASTER_PORT", "29400"}};
const Environment kPyTorchJob = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-master-0"}};
const Environment kMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kSlurmOne = {{"SLURM_PROCID", "6"},
                               {"SLURM_NTASKS", "7"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODEID", "3"},
                               {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                               {"SLURM_JOB_NODELIST", "gpu[07-08,11],fat3"},
                               {"SLURM_JOB_ID", "40017"},
                               {"SLURM_STEP_ID", "2"},
                               {"SLURM_STEP_NUM_TASKS", "7"}};
const Environment kPmi = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

const RankContext kFive = {5, 8, 1, 4, 1};
const RankContext kThree = {3, 4, 1, 2, 1};
const RankContext kSix = {6, 7, 0, 1, 0};

std::vector<Case> cases() {
  return {
      {"nothing", {}},
      {"a master alone", {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "y"}}},
      {"a shell of salloc", {{"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "gpu[1-2]"}}},
      {"a batch script",
       {{"SLURM_NTASKS", "4"},
        {"SLURM_PROCID", "0"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "3"}}},
      {"a shell of salloc on a node", with(kSlurmOne, {{"SLURM_STEP_ID", "4294967290"}})},
      {"a batch script with a number of a step", without(kSlurmOne, "SLURM_STEP_NUM_TASKS")},
      {"a batch script's own step", with(kSlurmOne, {{"SLURM_STEP_ID", "4294967291"}})},
      {.what = "torchrun",
       .environment = kTorchrunOne,
       .launcher = Launcher::kTorchrun,
       .context = kFive,
       .master = "gpu01",
       .port = 29400,
       .job = ""},
      {.what = "torchrun of one name, started again",
       .environment = with(kTorchrunOne,
                           {{"TORCHELASTIC_RUN_ID", "night"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}),
       .launcher = Launcher::kTorchrun,
       .context = kFive,
       .master = "gpu01",
       .port = 29400,
       .job = "/night/2"},
      {.what = "a job of its own",
       .environment = with(kTorchrunOne, {{"TORCHELASTIC_RUN_ID", "night"}, {"SLUICE_JOB", "x1"}}),
       .launcher = Launcher::kTorchrun,
       .context = kFive,
       .master = "gpu01",
       .port = 29400,
       .job = "x1"},
      {"DeepSpeed's launcher",
       with(without(kTorchrunOne, "LOCAL_WORLD_SIZE"), {{"LOCAL_SIZE", "4"}}), Launcher::kTorchrun,
       kFive, "gpu01", 29400},
      {"PyTorchJob", kPyTorchJob, Launcher::kTorchrun, {1, 2, 0, 1, 0}, "job-master-0"},
      {"PyTorchJob with a port",
       with(kPyTorchJob, {{"MASTER_PORT", "23456"}}),
       Launcher::kTorchrun,
       {1, 2, 0, 1, 0},
       "job-master-0",
       23456},
      {"PyTorchJob of a master alone", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Launcher::kTorchrun},
      {"somebody's own LOCAL_SIZE", {{"LOCAL_SIZE", "big"}}},
      {"one rank of torchrun",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}},
       Launcher::kTorchrun,
       {}},
      {"OpenMPI", kMpi, Launcher::kOpenMpi, kThree},
      {"OpenMPI with a master", with(kMpi, {{"MASTER_ADDR", "::1"}}), Launcher::kOpenMpi, kThree,
       "::1"},
      {.what = "Slurm",
       .environment = kSlurmOne,
       .launcher = Launcher::kSlurm,
       .context = kSix,
       .master = "gpu07",
       .port = 15'000 + 40'017 % 15'000,
       .job = "Slurm 40017 step 2"},
      {"torchrun that keeps its port",
       with(kTorchrunOne, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), Launcher::kTorchrun, kFive,
       "gpu01", 29401},
      {"torchrun that does not", with(kTorchrunOne, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
       Launcher::kTorchrun, kFive, "gpu01", 29400},
      {"Slurm with a master", with(kSlurmOne, {{"MASTER_ADDR", "ib0"}, {"MASTER_PORT", "1"}}),
       Launcher::kSlurm, kSix, "ib0", 1},
      {"Slurm with equal nodes and no node's number",
       with(without(without(kSlurmOne, "SLURM_NODEID"), "SLURM_JOB_ID"),
            {{"SLURM_NTASKS", "8"}, {"SLURM_TASKS_PER_NODE", "2(x4)"}}),
       Launcher::kSlurm,
       {6, 8, 0, 2, 0},
       "gpu07"},
      {"Slurm's step goes before its job",
       with(kSlurmOne, {{"SLURM_STEP_TASKS_PER_NODE", "3,2,1(x2)"}}), Launcher::kSlurm, kSix,
       "gpu07", 25'017},
      {"MPICH", kPmi, Launcher::kMpich, {1, 2, 1, 2, 1}},
      {"mpirun in an allocation of Slurm's", with(kMpi, kSlurmOne), Launcher::kOpenMpi, kThree},
      {"torchrun in tasks of Slurm's",
       with(with(kTorchrunOne, kSlurmOne), {{"TORCHELASTIC_RUN_ID", "7"}}), Launcher::kTorchrun,
       kFive, "gpu01", 29400},
      {"another launcher in one task of Slurm's",
       with(with(kTorchrunOne, kSlurmOne),
            {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_TASKS_PER_NODE", "1"}}),
       Launcher::kTorchrun, kFive, "gpu01", 29400},
      {"Slurm's own PMI", with(kSlurmOne, {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}}), Launcher::kSlurm,
       kSix, "gpu07", 25'017},
      {"a GPU each",
       with(kMpi, {{"CUDA_VISIBLE_DEVICES", "6"}}),
       Launcher::kOpenMpi,
       {3, 4, 1, 2, 0}},
      {"GPUs for all", with(kMpi, {{"CUDA_VISIBLE_DEVICES", "6,7"}}), Launcher::kOpenMpi, kThree},
      {"no GPU", with(kMpi, {{"CUDA_VISIBLE_DEVICES", ""}}), Launcher::kOpenMpi, {3, 4, 1, 2, -1}},

      {.what = "half of torchrun",
       .environment = without(without(kTorchrunOne, "LOCAL_RANK"), "WORLD_SIZE"),
       .refused =
           "incomplete torchrun environment: with RANK, LOCAL_WORLD_SIZE, but without WORLD_SIZE, "
           "LOCAL_RANK. Start every rank with torchrun, or unset RANK, LOCAL_WORLD_SIZE to run one "
           "process"},
      {.what = "WORLD_SIZE alone",
       .environment = {{"WORLD_SIZE", "2"}},
       .refused = "with WORLD_SIZE, but without RANK, LOCAL_RANK, LOCAL_WORLD_SIZE"},
      {.what = "PyTorchJob without a master",
       .environment = without(kPyTorchJob, "MASTER_ADDR"),
       .refused = "with RANK, WORLD_SIZE, but without MASTER_ADDR (rank 0's host;"},
      {.what = "PyTorchJob with a rank outside the world",
       .environment = with(kPyTorchJob, {{"RANK", "2"}}),
       .refused = "RANK is 2, which is not below WORLD_SIZE, 2"},
      {.what = "torchrun without a master",
       .environment = without(kTorchrunOne, "MASTER_PORT"),
       .refused = "with RANK, WORLD_SIZE, but without MASTER_PORT"},
      {.what = "half of OpenMPI",
       .environment = without(kMpi, "OMPI_COMM_WORLD_SIZE"),
       .refused = "but without OMPI_COMM_WORLD_SIZE. Start every rank with mpirun, or unset"},
      {.what = "half of Slurm",
       .environment = without(without(kSlurmOne, "SLURM_NTASKS"), "SLURM_TASKS_PER_NODE"),
       .refused = "incomplete srun environment: with SLURM_PROCID, SLURM_LOCALID, but without "
                  "SLURM_NTASKS, SLURM_STEP_TASKS_PER_NODE. Start every rank with srun, or unset "
                  "SLURM_STEP_ID to run one process"},
      {.what = "half of MPICH",
       .environment = without(kPmi, "MPI_LOCALRANKID"),
       .refused = "without MPI_LOCALRANKID"},
      {.what = "a half beside a whole",
       .environment = with(kMpi, {{"LOCAL_RANK", "0"}}),
       .refused = "incomplete torchrun environment: with LOCAL_RANK, but"},
      {.what = "uneven nodes without a number",
       .environment = without(kSlurmOne, "SLURM_NODEID"),
       .refused = "SLURM_NODEID is not set"},
      {.what = "a node that is not there",
       .environment = with(kSlurmOne, {{"SLURM_NODEID", "4"}}),
       .refused = "SLURM_NODEID is '4'; it must be a whole number from 0 to 3"},
      {.what = "tasks of the job, not of the step",
       .environment = with(kSlurmOne, {{"SLURM_TASKS_PER_NODE", "4(x2)"}}),
       .refused = "makes 8 tasks, and SLURM_NTASKS is 7: start the run by srun"},
      {.what = "a rank outside the world",
       .environment = with(kTorchrunOne, {{"RANK", "8"}}),
       .refused = "RANK is 8, which is not below WORLD_SIZE, 8"},
      {.what = "a local rank outside its host",
       .environment = with(kTorchrunOne, {{"LOCAL_RANK", "4"}}),
       .refused = "LOCAL_RANK is 4, which is not below LOCAL_WORLD_SIZE, 4"},
      {.what = "a host larger than the world",
       .environment = with(kTorchrunOne, {{"LOCAL_WORLD_SIZE", "9"}}),
       .refused = "LOCAL_WORLD_SIZE is 9, which is more than WORLD_SIZE, 8"},
      {.what = "a local rank above the rank",
       .environment = with(kTorchrunOne, {{"RANK", "0"}}),
       .refused = "LOCAL_RANK is 1, which is more than RANK, 0"},
      {.what = "no ranks",
       .environment = with(kMpi, {{"OMPI_COMM_WORLD_SIZE", "0"}}),
       .refused = "which is not below OMPI_COMM_WORLD_SIZE, 0"},
      {.what = "launchers that disagree",
       .environment = with(kTorchrunOne, kMpi),
       .refused = "torchrun says rank 5 of 8 and mpirun says rank 3 of 4"},
      {.what = "a port that is none",
       .environment = with(kTorchrunOne, {{"MASTER_PORT", "70000"}}),
       .refused = "MASTER_PORT is '70000'; it must be a whole number from 1 to 65535"},
      {.what = "port 0",
       .environment = with(kTorchrunOne, {{"MASTER_PORT", "0"}}),
       .refused = "MASTER_PORT is '0'"},
      {.what = "an address that is none",
       .environment = with(kTorchrunOne, {{"MASTER_ADDR", "a b"}}),
       .refused = "MASTER_ADDR is 'a b'"},
      {.what = "a list that is none",
       .environment = with(kSlurmOne, {{"SLURM_JOB_NODELIST", "gpu[1-"}}),
       .refused = "SLURM_JOB_NODELIST: 'gpu[1-' has a '[' without its ']'"},
      {.what = "a job that is none",
       .environment = with(kSlurmOne, {{"SLURM_JOB_ID", "12a"}}),
       .refused = "SLURM_JOB_ID is '12a'"},
  };
}

TEST(RankContext, HasTheTasksOfAnAllocationThatStartedNone) {
  const Environment batch = {
      {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "3"}};
  EXPECT_EQ(read_launch(batch)->tasks_beside, 4);
  EXPECT_EQ(read_launch(with(kSlurmOne, {{"SLURM_STEP_ID", "4294967291"}}))->tasks_beside, 7);
  EXPECT_EQ(read_launch(kSlurmOne)->tasks_beside, 0);
  EXPECT_EQ(read_launch(with(batch, kTorchrunOne))->tasks_beside, 0);
  EXPECT_EQ(read_launch(with(batch, {{"SLURM_NTASKS", "many"}}))->tasks_beside, 0);
  EXPECT_EQ(read_launch(without(batch, "SLURM_JOB_ID"))->tasks_beside, 0);
}

TEST(RankContext, IsReadFromWhatLaunchersSet) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.what);
    const auto launch = read_launch(one.environment);
    if (one.refused != nullptr) {
      ASSERT_FALSE(launch.ok());
      EXPECT_EQ(launch.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(launch.error().message(), HasSubstr(one.refused));
      continue;
    }
    ASSERT_TRUE(launch.ok()) << launch.error().message();
    EXPECT_EQ(launch->launcher, one.launcher);
    EXPECT_EQ(launch->context.rank, one.context.rank);
    EXPECT_TRUE(launch->context == one.context);
    EXPECT_EQ(launch->master_address, one.master);
    EXPECT_EQ(launch->master_port, one.port);
    if (one.job != nullptr) {
      EXPECT_EQ(launch->job, one.job);
    }
  }
}

TEST(RankContext, RefusesHostileNumbersInEveryVariable) {
  for (const std::string value : {"", " 1", "1 ", "+1", "-1", "0x1", "1e0", "1.0",
                                  "99999999999999999999", "65537", "one", "1\n", "\xff"}) {
    for (const Environment& environment : {kTorchrunOne, kMpi, kSlurmOne, kPmi}) {
      for (const auto& [name, good] : environment) {
        if (name == "MASTER_ADDR" || name == "SLURM_JOB_NODELIST") continue;
        if (name == "SLURM_JOB_ID" && value == "65537") continue;
        if (name.starts_with("SLURM_STEP")) continue;  // then it is no task of Slurm's
        const auto launch = read_launch(with(environment, {{name, value}}));
        ASSERT_FALSE(launch.ok()) << name << "=" << value;
        EXPECT_THAT(launch.error().message(), HasSubstr(name));
      }
    }
  }
  const auto launch = read_launch(with(kTorchrunOne, {{"RANK", std::string(100'000, '\x1b')}}));
  ASSERT_FALSE(launch.ok());
  EXPECT_LT(launch.error().message().size(), 300U);
  EXPECT_EQ(launch.error().message().find('\x1b'), std::string::npos);
}

TEST(RankContext, HasWhatRanksTrustEachOtherBy) {
  const auto read = [](const Environment& more) { return read_launch(with(kTorchrunOne, more)); };
  EXPECT_EQ(read({})->secret + read({})->secret_file + read({})->listen_address, "");
  EXPECT_EQ(read({{"SLUICE_SECRET_FILE", "/run/secret"}})->secret_file, "/run/secret");
  const auto both = read({{"SLUICE_SECRET", "x y"}, {"SLUICE_SECRET_FILE", "/run/secret"}});
  EXPECT_EQ(both->secret, "x y");
  EXPECT_EQ(both->secret_file, "");
  EXPECT_EQ(read({{"SLUICE_LISTEN", "10.0.0.7"}})->listen_address, "10.0.0.7");
  for (const char* name : {"SLUICE_SECRET", "SLUICE_SECRET_FILE", "SLUICE_LISTEN"})
    EXPECT_THAT(read({{name, ""}}).error().message(), HasSubstr(std::string(name) + " is empty"));
}

TEST(ShownText, IsCutAndHasItsControlCharactersAsDigits) {
  EXPECT_EQ(shown("a b\n\x1b[1m\x7f", 100), "a b\\x0a\\x1b[1m\\x7f");
  EXPECT_EQ(shown("Zürich 東京 \U0001F600", 100), "Zürich 東京 \U0001F600");
  EXPECT_EQ(shown("\xc2\x9b"
                  "2J \xe2\x80\xae \xff\xc3",
                  100),
            "\\x9b2J \\u202e \\xff\\xc3");
  EXPECT_EQ(shown("abcdef", 4), "abcd...");
  EXPECT_EQ(shown("", 4), "");
}

TEST(NodeList, IsExpandedAsSlurmMeansIt) {
  const auto expanded = [](const char* list) { return parse_node_list(list).value(); };
  EXPECT_THAT(expanded("a"), ElementsAre("a"));
  EXPECT_THAT(expanded("a,b-1"), ElementsAre("a", "b-1"));
  EXPECT_THAT(expanded("n[1-3]"), ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(expanded("n[08-11,3]-ib,x"),
              ElementsAre("n08-ib", "n09-ib", "n10-ib", "n11-ib", "n3-ib", "x"));
  EXPECT_EQ(expanded("n[0-65535]").size(), 65536U);
  for (const char* bad : {"", ",", "a,", ",a", "a,,b", "n[", "n]", "n[]", "n[1-]", "n[-1]",
                          "n[3-1]", "n[a]", "n[1][2]", "n[1,]", "n[0-65536]", "n[0-999999999]",
                          "a b", "n[1-99999999999999]", "n[0-65535],n[0-65535]"}) {
    EXPECT_FALSE(parse_node_list(bad).ok()) << bad;
  }
}

TEST(TasksPerNode, AreExpandedAsSlurmMeansThem) {
  EXPECT_THAT(parse_tasks_per_node("2(x3),1").value(), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(parse_tasks_per_node("4").value(), ElementsAre(4));
  for (const char* bad : {"", "0", "2(x0)", "2(x", "2(x3", "2x3", "(x3)", "2,", ",2", "2(x65537)",
                          "1(x65536),1", "-1", "2(x3)4"}) {
    EXPECT_FALSE(parse_tasks_per_node(bad).ok()) << bad;
  }
}

TEST(Hostfile, IsReadAsDeepSpeedWritesIt) {
  const auto hosts =
      parse_hostfile("# two hosts\n\n worker-1   slots=4 # eight soon\r\n\tworker-2 slots=2");
  ASSERT_TRUE(hosts.ok()) << hosts.error().message();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"worker-1", 4}, HostSlots{"worker-2", 2}));
  // Other input that DeepSpeed's reader accepts: users, Open MPI's max_slots, indents; a byte order
  // mark.
  const auto others = parse_hostfile(
      "\xEF\xBB\xBF"
      "amd@10.1.0.10 slots=2 max_slots=2\r\n   # indented\n\t\nnode-b slots=02");
  ASSERT_TRUE(others.ok()) << others.error().message();
  EXPECT_THAT(*others, ElementsAre(HostSlots{"amd@10.1.0.10", 2}, HostSlots{"node-b", 2}));
  EXPECT_EQ(others->front().address(), "10.1.0.10");
  const auto refusal = [](const char* text) { return parse_hostfile(text).error().message(); };
  EXPECT_EQ(refusal("a slots=1\n#\nb slots=2\na slots=1\n"),
            "line 4 of the hostfile: host 'a' is listed twice");
  EXPECT_EQ(refusal("me@Node-A slots=1\nnode-a slots=2\n"),
            "line 2 of the hostfile: host 'node-a' is listed twice");
  EXPECT_THAT(refusal("a slots=1\nb\n"), ContainsRegex("line 2.*'host slots=N'"));
  EXPECT_EQ(refusal("-oProxyCommand=x slots=1\n"),
            "line 1 of the hostfile: no host is called '-oProxyCommand=x'");
  EXPECT_THAT(refusal("# nothing\n\n"), HasSubstr("names no host"));
  for (const char* bad :
       {"", "a slots=0", "a slots=-1", "a slots=", "a slots=4 max=8", "a slots = 4", "a 4",
        "slots=4", "node-a:2", "node_ip slots=num_of_gpus", "a@ slots=1", "@a slots=1",
        "a@h slots=1\nb@h slots=1", "a slots=1 max_slots=x", "a slots=1 max_slots=1 more",
        "a slots=65536\nb slots=1", "a slots=1e3"}) {
    EXPECT_FALSE(parse_hostfile(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace sluice::engine
