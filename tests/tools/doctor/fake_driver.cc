// The functions of libcuda and libnvidia-ml that the doctor uses, in one library. FAKE_DRIVER says
// what they report: "cuda=12040,driver=550,gpus=2,capability=61,total=24,free=10,peers=0,init=803,
// hangs=1". Sizes are in GiB. Values that are left out are those of a machine with one H100.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kInvalidValue = 1;

std::size_t setting(const std::string& name, std::size_t usual) {
  const char* const text = std::getenv("FAKE_DRIVER");
  const std::string all = "," + std::string(text == nullptr ? "" : text);
  const std::size_t at = all.find("," + name + "=");
  return at == std::string::npos ? usual : std::strtoull(&all[at + name.size() + 2], nullptr, 10);
}

std::size_t gib(const std::string& name, std::size_t usual) { return setting(name, usual) << 30U; }

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

int devices[16];

}  // namespace

// These names are CUDA's and NVML's.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

int cuInit(unsigned int /*flags*/) {
  while (setting("hangs", 0) != 0) ::usleep(10'000);
  return static_cast<int>(setting("init", 0));
}
int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(setting("cuda", 13000));
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(setting("gpus", 1));
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int length, int /*device*/) {
  std::snprintf(name, static_cast<std::size_t>(length), "Fake H100");
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int /*device*/) {
  *bytes = gib("total", 80);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  const auto capability = static_cast<int>(setting("capability", 90));
  if (attribute != 75 && attribute != 76) return kInvalidValue;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
int cuDeviceGetPCIBusId(char* bus_id, int length, int device) {
  std::snprintf(bus_id, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
  return 0;
}
int cuDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = static_cast<int>(setting("peers", 1));
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : "some error";
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  const std::size_t major = setting("driver", 580);
  std::snprintf(version, length, "%zu.95.05", major);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  const auto number = std::strtoul(std::string(bus_id, 5, 2).c_str(), nullptr, 16);
  if (std::strlen(bus_id) != 12 || number >= 16) return kInvalidValue;
  *device = &devices[number];
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* /*device*/, Memory* memory) {
  *memory = {gib("nvml_total", setting("total", 80)), gib("free", 79), 0};
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
