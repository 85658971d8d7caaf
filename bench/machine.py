"""Which machine a table of figures was measured on."""

import os
import re


def mkl_code_path():
    """What the worker daemon sets MKL_CBWR to (common/instruction_set.h)."""
    with open("/proc/cpuinfo") as file:
        text = file.read()
    if not re.search(r"^flags.*\bavx512vl\b", text, re.M):
        return "AVX2"
    return "AVX512" if "GenuineIntel" in text else "AUTO"


def machine():
    """One line: processor, cores of this process, and the widest instruction set that GEMMs may use."""
    with open("/proc/cpuinfo") as file:
        text = file.read()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    flags = set(re.search(r"^flags\s*:\s*(.*)$", text, re.M).group(1).split())
    names = {"amx_bf16": "AMX BF16", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    isa = next((name for flag, name in names.items() if flag in flags), "no AVX2")
    cores = len(os.sched_getaffinity(0))
    return "%s, %d core%s, %s" % (model.group(1).strip() if model else "unknown CPU", cores, "s"[cores == 1:], isa)
