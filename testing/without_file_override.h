// For tests of files that may not be read. Root reads them all the same, by its capabilities.
#pragma once

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace muster {

// Runs `body` in a thread that obeys the modes of files, as the programs do that it starts.
template <typename Body>
void WithoutFileOverride(const Body& body) {
  std::thread([&body] {
    // Without effect for those who are not root, who need none.
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
    syscall(SYS_capget, &header, sets);
    for (const int right : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
      prctl(PR_CAPBSET_DROP, right, 0, 0, 0);  // of the programs that it starts
      sets[0].effective &= ~(1u << right);
      sets[0].permitted &= ~(1u << right);
      sets[0].inheritable &= ~(1u << right);
    }
    syscall(SYS_capset, &header, sets);
    body();
  }).join();
}

}  // namespace muster
