import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
import threading

import pytest

from gpumem_magic.isolation.walls import seccomp

ALLOWED = None
X86, ARM = seccomp._MACHINES["x86_64"], seccomp._MACHINES["aarch64"]


def decide(machine, number, *arguments, truncate=True, architecture=None):
    """The error that the filter of a machine gives for a call, None if it is made."""
    program = seccomp._Assembler(*machine).assemble(truncate)
    steps = [*struct.iter_unpack("=HBBI", program)]
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, architecture or machine[1], 0, *values)
    at = loaded = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            loaded &= value
        elif code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value - 0x50000
        else:
            true = {0x15: loaded == value, 0x35: loaded >= value, 0x45: loaded & value}[code]
            at += if_true if true else if_false


@pytest.mark.parametrize(
    ("x86", "arm", "error"),
    [
        (0, 63, ALLOWED),  # read
        (1, 64, ALLOWED),  # write
        (9, 222, ALLOWED),  # mmap
        (59, 221, errno.EPERM),  # execve
        (101, 117, errno.EPERM),  # ptrace
        (50, 201, errno.EACCES),  # listen
        (42, 203, errno.ECONNREFUSED),  # connect
        (307, 269, errno.ECONNREFUSED),  # sendmmsg
        (435, 435, errno.ENOSYS),  # clone3
        (91, 52, 0),  # fchmod
        (469, 469, 0),  # file_setattr
        (73, 32, 0),  # flock
        (467, 467, errno.EPERM),  # open_tree_attr
    ],
)
def test_calls(x86, arm, error):
    assert decide(X86, x86) == decide(ARM, arm) == error


@pytest.mark.parametrize(
    ("x86", "arm", "arguments", "error"),
    [
        (62, 129, (os.getpid(), 9), ALLOWED),  # kill
        (62, 129, (os.getppid(), 9), errno.EPERM),
        (62, 129, (0, 9), errno.EPERM),
        (62, 129, (2**64 - os.getpid(), 9), errno.EPERM),
        (302, 261, (0, 7), ALLOWED),  # prlimit64
        (302, 261, (os.getppid(), 7), errno.EPERM),
        (302, 261, (0, 4, 0), ALLOWED),  # it asks for RLIMIT_CORE
        (302, 261, (0, 4, 0x7F), 0),
        (302, 261, (0, 7, 0x7F), ALLOWED),
        (160, 164, (4, 0x7F), 0),  # setrlimit
        (160, 164, (7, 0x7F), ALLOWED),
        (56, 220, (0x3D0F00,), ALLOWED),  # clone, of a thread
        (56, 220, (0x1200011,), errno.EPERM),
        (44, 206, (3, 0, 0, 0, 0), ALLOWED),  # sendto
        (44, 206, (3, 0, 0, 0, 0x7F), errno.ECONNREFUSED),
        (44, 206, (3, 0, 0, 0, 0x7F00000000), errno.ECONNREFUSED),
        (41, 198, (1, 2), ALLOWED),  # socket
        (41, 198, (10, 1), ALLOWED),
        (41, 198, (16, 3), errno.EAFNOSUPPORT),
        (41, 198, (2, 1, 6), ALLOWED),
        (41, 198, (2, 1, 132), errno.EPROTONOSUPPORT),  # SCTP
        (54, 208, (3, 0, 35), errno.ENODEV),  # setsockopt, IP_ADD_MEMBERSHIP
        (54, 208, (3, 41, 20), errno.ENODEV),  # IPV6_JOIN_GROUP
        (54, 208, (3, 0, 1), ALLOWED),
        (54, 208, (3, 1, 20), ALLOWED),  # SO_RCVTIMEO
        (16, 29, (0, 0x5401), ALLOWED),  # ioctl
        (16, 29, (0, 0x5402), errno.EPERM),
        (16, 29, (0, 0x5406), errno.EPERM),  # TCSETA
        (16, 29, (0, 0x402C542B), errno.EPERM),  # TCSETS2
        (16, 29, (0, 0x5423), errno.EPERM),  # TIOCSETD
        (16, 29, (0, 0x541B), ALLOWED),
        (16, 29, (0, 0x80045430), ALLOWED),  # TIOCGPTN
        (16, 29, (0, 0x5452), 0),  # FIOASYNC
        (16, 29, (0, 0x8901), 0),  # FIOSETOWN
        (16, 29, (0, 0x8910), ALLOWED),
        (16, 29, (0, 0x40086602), errno.EOPNOTSUPP),  # FS_IOC_SETFLAGS
        (16, 29, (0, 0x40087602), errno.EOPNOTSUPP),  # FS_IOC_SETVERSION
        (16, 29, (0, 0xC0045877), errno.EOPNOTSUPP),  # FIFREEZE
        (72, 25, (0, 1), ALLOWED),  # fcntl, F_GETFD
        (72, 25, (0, 6), 0),  # F_SETLK
        (72, 25, (0, 8), 0),  # F_SETOWN
        (72, 25, (0, 1024), 0),  # F_SETLEASE
        (72, 25, (0, 1038), 0),  # F_SET_FILE_RW_HINT
        (157, 167, (15,), ALLOWED),  # prctl, PR_SET_NAME
        (157, 167, (1, 0), 0),  # PR_SET_PDEATHSIG
    ],
)
def test_arguments(x86, arm, arguments, error):
    assert decide(X86, x86, *arguments) == decide(ARM, arm, *arguments) == error


def test_truncate_is_stopped_where_landlock_does_not():
    assert decide(X86, 76) == decide(ARM, 45) == ALLOWED
    assert decide(X86, 76, truncate=False) == decide(ARM, 45, truncate=False) == errno.EACCES


def test_other_sets_of_numbers_are_unknown():
    assert decide(X86, 0x40000000 + 59) == errno.ENOSYS
    assert decide(X86, 3, architecture=0x40000003) == errno.ENOSYS


@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in seccomp._MACHINES, reason="no filter here"
)
def test_threads_that_are_there_already_act_no_more_than_this_one(in_child):
    def run(pipe):
        refused, found = threading.Event(), []

        def act():
            refused.wait()
            with contextlib.suppress(PermissionError):
                os.kill(os.getppid(), 0)
                found.append("a signal")
            with socket.socket() as end:
                found.append(end.connect_ex(server.getsockname()))

        thread = threading.Thread(target=act)
        thread.start()
        libc = ctypes.CDLL(None)
        libc.prctl(38, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        found.append(seccomp.refuse_calls(libc, truncate=True))
        refused.set()
        thread.join()
        return found

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert in_child(run) == [True, errno.ECONNREFUSED]
