"""The machine: its cores and who runs on which, and the CPU time that a process has used."""

import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pinning:
    """Which cores whom, as taskset takes them."""

    nginx: str
    redis: str
    load: str

    @staticmethod
    def of_this_machine() -> "Pinning":
        """The worker gets a core of its own, so that nothing takes time from what is measured. Where there are only two,
        Redis and the load share the other: that slows what asks Redis, and nothing else, which favours limit_req."""
        cores = sorted(os.sched_getaffinity(0))
        last = len(cores) - 1
        return Pinning(str(cores[0]), str(cores[min(1, last)]), str(cores[min(2, last)]))

    def in_words(self) -> str:
        if self.nginx == self.redis:
            return "No process has a core of its own."
        if self.redis == self.load:
            return ("The worker has a core of its own; Redis and wrk share the other. What uses Redis is slowed "
                    "down by that, and `limit_req` is not: the tables show how busy both were.")
        return "The worker, Redis and wrk have a core each."

    @staticmethod
    def none() -> "Pinning":
        """Everybody everywhere."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return Pinning(cores, cores, cores)


def cpu_seconds(pids: list[int]) -> float:
    """What the scheduler has given to the main threads of these processes until now."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def wait_until_idle(pid: int, share: float) -> None:
    """Waits until a process has used no more than this share of a core for half a second."""
    used, quiet = cpu_seconds([pid]), 0
    while quiet < 5:
        time.sleep(0.1)
        now = cpu_seconds([pid])
        quiet, used = (quiet + 1 if now - used < share * 0.1 else 0), now


def busy_seconds() -> float:
    """The time that all cores have worked until now, for any process, and that the host has taken from them."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def private_memory(pid: int) -> int:
    """The bytes of memory that a process has for itself, without what it shares."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not report RssAnon")


def available_memory() -> int:
    """The bytes of memory that can still be had."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def state(pid: int) -> str:
    """The state of a process, as ps shows it: S while it waits for something, T while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(after_name[1]) == parent:
            found.append(int(stat.parent.name))
    return sorted(found)


def allow_many_files() -> int:
    """Raises the number of files that processes may open as far as it goes, and returns it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def describe(tools: dict[str, str], pinning: Pinning) -> dict[str, str]:
    """What a reader of the results has to know of where they were made."""

    def first_line(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).strip().splitlines()
        return lines[0] if lines else "unknown"

    cpu = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
           if line.startswith("model name")]
    lua = first_line("dpkg-query", "-W", "-f", "${Version}", "libnginx-mod-http-lua")
    # Only what belongs to the project: a checkout that was changed is no commit.
    changed = first_line("git", "status", "--porcelain", "--", "src", "core", "Cargo.lock")
    commit = first_line("git", "rev-parse", "--short", "HEAD") + ("" if changed == "unknown" else " and changes")
    return {
        "cores": f"{len(os.sched_getaffinity(0))} of {cpu[0] if cpu else platform.processor()}",
        "kernel": platform.release(),
        "nginx": first_line(tools["nginx"], "-v").rpartition("/")[2],
        "redis": first_line(tools["redis-server"], "--version").split("v=")[-1].split()[0],
        "wrk": first_line(tools["wrk"], "-v").split("[")[0].strip(),
        "lua module": lua,
        "module": commit,
        "rustc": first_line("rustc", "--version"),
        "pinning": f"nginx on {pinning.nginx}, redis on {pinning.redis}, load on {pinning.load}",
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
    }
