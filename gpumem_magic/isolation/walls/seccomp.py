"""A seccomp filter: system calls by which this process would act on others do not get through.

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

# The numbers of each call on x86-64 and on arm64, "-" where it does not exist.
_REFUSED = """
execve 59 221, execveat 322 281, fork 57 -, vfork 58 -,
pidfd_send_signal 424 424, pidfd_getfd 438 438, ptrace 101 117, process_vm_writev 311 271,
process_madvise 440 440, process_mrelease 448 448,
shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191,
semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187,
mq_open 240 180, mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183,
mq_notify 244 184, mount 165 40, umount2 166 39, pivot_root 155 41, move_mount 429 429,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, open_tree 428 428,
mount_setattr 442 442, open_tree_attr 467 467, setns 308 268, unshare 272 97, chroot 161 51,
reboot 169 142, settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266,
adjtimex 159 171, sethostname 170 161, setdomainname 171 162, bpf 321 280, perf_event_open 298 241,
add_key 248 217, request_key 249 218, keyctl 250 219, quotactl 179 60, quotactl_fd 443 443,
swapon 167 224, swapoff 168 225, init_module 175 105, finit_module 313 273,
delete_module 176 106, acct 163 89, syslog 103 116, kexec_load 246 104,
kexec_file_load 320 294, iopl 172 -, ioperm 173 -, vhangup 153 58, fanotify_init 300 262
"""
_NO_LISTENING = "bind 49 200, listen 50 201"
# The address of the last two lies in memory, where a filter cannot look.
_NO_CONNECTION = "connect 42 203, sendmsg 46 211, sendmmsg 307 269"
# io_uring passes seccomp; libc takes clone in place of clone3, whose flags lie in memory.
_UNKNOWN = (
    "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, clone3 435 435"
)
# Not covered by Landlock, but copying a file into the scratch folder needs them to succeed; and
# locks of a file that is read, which others would wait for.
_IGNORED = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55,
lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15,
fremovexattr 199 16, setxattrat 463 463, removexattrat 466 466, file_setattr 469 469,
setpriority 141 140, ioprio_set 251 30, sched_setaffinity 203 122, sched_setscheduler 144 119,
sched_setparam 142 118, sched_setattr 314 274, migrate_pages 256 238, flock 73 32
"""
_TRUNCATE = "truncate 76 45"
_SIGNALS = "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138"
_MORE_SIGNALS = "rt_tgsigqueueinfo 297 240"
_OF_OTHERS = "move_pages 279 239, setpgid 109 154"
_SETRLIMIT, _PRLIMIT = "setrlimit 160 164", "prlimit64 302 261"
_CLONE, _SENDTO, _SOCKET, _IOCTL = "clone 56 220", "sendto 44 206", "socket 41 198", "ioctl 16 29"
_FCNTL, _PRCTL, _SETSOCKOPT = "fcntl 72 25", "prctl 157 167", "setsockopt 54 208"

_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
# the default, ICMP, TCP, UDP, ICMPv6: for another one the system would load a module
_PROTOCOLS = (0, 1, 6, 17, 58)
_LEVELS = (0, 41)  # IPPROTO_IP, IPPROTO_IPV6
# IPV6_JOIN_GROUP, IPV6_JOIN_ANYCAST, IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, MCAST_JOIN_GROUP,
# MCAST_JOIN_SOURCE_GROUP: the network is told of them
_JOINING = (20, 27, 35, 39, 42, 46)
_CLONE_THREAD = 0x10000
_CORE = 4  # RLIMIT_CORE: a program may take the dumps
_TERMINALS = 0x5400  # all others of theirs need no more than one that is open for reading
# TCGETS, TCGETA, TIOCGPGRP, TIOCOUTQ, TIOCGWINSZ, TIOCMGET, FIONREAD, FIONBIO, TIOCGSID, FIONCLEX,
# FIOCLEX, FIOQSIZE, TCGETS2, TIOCGPTN, TIOCGPTLCK, TIOCGEXCL
_ASKING = (
    *(0x5401, 0x5405, 0x540F, 0x5411, 0x5413, 0x5415, 0x541B, 0x5421, 0x5429, 0x5450, 0x5451),
    *(0x5460, 0x802C542A, 0x80045430, 0x80045439, 0x80045440),
)
_KIND = 0xFF00  # of an ioctl
_OWNERS = (0x8901, 0x8902, 0x5452)  # FIOSETOWN, SIOCSPGRP, FIOASYNC: who gets signals of a socket
# FS_IOC_SETFLAGS and all others of file systems, which need no more than a file open for reading
_OF_FILE_SYSTEMS = tuple(letter << 8 for letter in (*b"Xfv", 0x94))
# F_SETLK and F_SETLKW, F_SETOWN, F_SETOWN_EX, locks of open files, F_SETLEASE, F_NOTIFY,
# F_SET_RW_HINT, F_SET_FILE_RW_HINT
_FOR_OTHERS = (6, 7, 8, 15, 37, 38, 1024, 1026, 1036, 1038)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # AUDIT_ARCH_*
_X32 = 0x40000000  # a second set of numbers on x86-64
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in struct seccomp_data
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000  # SECCOMP_RET_*
_SECCOMP = (317, 277)
_SET_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC


def refuse_calls(libc: ctypes.CDLL, *, truncate: bool) -> bool:
    """From now on no thread starts a process, sends a signal, reaches a network or changes metadata
    of files; False if that could not be had. There are others where a library (gRPC) has the system
    call it after each fork, and starts some.

    It takes PR_SET_NO_NEW_PRIVS. truncate: whether `truncate` is stopped elsewhere.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        return False
    program = _Assembler(*machine).assemble(truncate)
    steps = ctypes.create_string_buffer(program, len(program))
    description = ctypes.create_string_buffer(
        struct.pack("HP", len(program) // 8, ctypes.addressof(steps))
    )
    return not libc.syscall(_SECCOMP[machine[0]], _SET_FILTER, _ALL_THREADS, description)


class _Assembler:
    """Classic BPF: what is done with each call, one sort after the other."""

    def __init__(self, column: int, architecture: int) -> None:
        self._column = column
        self._steps = [
            _step(_LOAD, _ARCHITECTURE),
            _step(_EQUAL, architecture, 1, 0),
            _fail(errno.ENOSYS),
            _step(_LOAD, _NUMBER),
            _step(_AT_LEAST, _X32, 0, 1),
            _fail(errno.ENOSYS),
        ]

    def assemble(self, truncate: bool) -> bytes:
        own = os.getpid()
        self._add(_REFUSED, [_fail(errno.EPERM)])
        self._add(_NO_LISTENING, [_fail(errno.EACCES)])
        self._add(_NO_CONNECTION, [_fail(errno.ECONNREFUSED)])
        self._add(_UNKNOWN, [_fail(errno.ENOSYS)])
        self._add(_IGNORED, [_fail(0)])
        if not truncate:
            self._add(_TRUNCATE, [_fail(errno.EACCES)])
        self._add(f"{_SIGNALS}, {_MORE_SIGNALS}", _allow_only(0, (own,), errno.EPERM))
        self._add(_OF_OTHERS, _allow_only(0, (0, own), errno.EPERM))
        limits = [_argument(1), *_if_one_of((_CORE,), _refuse_pointer(2, 0))]
        self._add(_PRLIMIT, [*_allow_only(0, (0, own), errno.EPERM), *limits])
        self._add(_SETRLIMIT, [_argument(0), *_refuse_values((_CORE,), 0)])
        protocols = _allow_only(2, _PROTOCOLS, errno.EPROTONOSUPPORT)
        self._add(_SOCKET, [*_allow_only(0, _FAMILIES, errno.EAFNOSUPPORT), *protocols])
        joining = [_argument(2), *_refuse_values(_JOINING, errno.ENODEV)]
        self._add(_SETSOCKOPT, [_argument(1), *_if_one_of(_LEVELS, joining)])
        self._add(_CLONE, [_argument(0), _step(_ANY_BIT, _CLONE_THREAD, 1, 0), _fail(errno.EPERM)])
        self._add(_SENDTO, _refuse_pointer(4, errno.ECONNREFUSED))
        self._add(_FCNTL, [_argument(1), *_refuse_values(_FOR_OTHERS, 0)])
        self._add(_PRCTL, [_argument(0), *_refuse_values((_SET_DEATH_SIGNAL,), 0)])
        terminals = _refuse_values((_TERMINALS,), errno.EPERM)
        systems = _refuse_values(_OF_FILE_SYSTEMS, errno.EOPNOTSUPP)
        judged = [*_refuse_values(_OWNERS, 0), _step(_AND, _KIND), *terminals, *systems]
        self._add(_IOCTL, [_argument(1), *_unless_one_of(_ASKING, judged)])
        return b"".join([*self._steps, _step(_RETURN, _ALLOW)])

    def _add(self, calls: str, body: list[bytes]) -> None:
        """`body` runs for `calls`: it returns, or its end is reached, which allows them."""
        numbers = self._read_numbers(calls)
        length = len(body) + 1
        for left, number in zip(range(len(numbers) - 1, -1, -1), numbers, strict=True):
            self._steps.append(_step(_EQUAL, number, left, 0 if left else length))
        self._steps += [*body, _step(_RETURN, _ALLOW)]

    def _read_numbers(self, calls: str) -> list[int]:
        numbers = [call.split()[1 + self._column] for call in calls.split(",")]
        return [int(number) for number in numbers if number != "-"]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(error: int) -> bytes:
    """The call is not made and gives `error`; with 0 it seems to succeed."""
    return _step(_RETURN, _ERROR | error)


def _argument(index: int, *, high: bool = False) -> bytes:
    return _step(_LOAD, _ARGUMENTS + 8 * index + 4 * high)


def _allow_only(index: int, values: Iterable[int], error: int) -> list[bytes]:
    values = tuple(values)
    jumps = [_step(_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_argument(index), *jumps, _fail(error)]


def _refuse_values(values: tuple[int, ...], error: int) -> list[bytes]:
    """Of what is loaded; with another one it goes on behind."""
    last = len(values) - 1
    jumps = [_step(_EQUAL, value, last - at, at == last) for at, value in enumerate(values)]
    return [*jumps, _fail(error)]


def _if_one_of(values: tuple[int, ...], body: list[bytes]) -> list[bytes]:
    """`body` runs where what is loaded is one of them."""
    last = len(values) - 1
    jumps = [
        _step(_EQUAL, value, last - at, len(body) if at == last else 0)
        for at, value in enumerate(values)
    ]
    return [*jumps, *body]


def _unless_one_of(values: tuple[int, ...], body: list[bytes]) -> list[bytes]:
    """`body` runs where what is loaded is none of them."""
    after = len(values) - 1 + len(body)
    return [*(_step(_EQUAL, value, after - at, 0) for at, value in enumerate(values)), *body]


def _refuse_pointer(index: int, error: int) -> list[bytes]:
    """It has two halves."""
    return [
        _argument(index),
        _step(_EQUAL, 0, 0, 2),
        _argument(index, high=True),
        _step(_EQUAL, 0, 1, 0),
        _fail(error),
    ]
