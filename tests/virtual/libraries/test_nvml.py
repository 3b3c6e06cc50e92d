"""What tells of the driver answers for the card of a prediction."""

from __future__ import annotations

import pytest

from gpumem_magic import predict

CELL = """import os, subprocess, torch
x = torch.zeros(100 * 2**20, dtype=torch.uint8, device="cuda")
command = "nvidia-smi {}"
for told in (
    subprocess.check_output(command.split(), text=True),
    subprocess.run(command, shell=True, stdout=subprocess.PIPE).stdout.decode(),
    subprocess.getoutput(command) + chr(10),
    os.popen(command).read(),
):
    print(told, end="")
"""

COUNTED = "--query-gpu=index,memory.used,memory.total,memory.free --format=csv,nounits,noheader"


def printed(options):
    return predict(CELL.format(options), {}, gpu="T4").output.splitlines()


def test_nvidia_smi_tells_of_the_memory_of_the_card_by_all_ways_to_ask():
    first, *others = printed(COUNTED)
    index, used, total, free = map(int, first.split(", "))
    assert index == 0
    assert total == 15095  # 14.74 GiB
    assert used == 220  # 100 MiB, and the context
    assert used + free == total
    assert others == [first] * 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-L", "GPU 0: Tesla T4 (UUID: [N/A])"),
        ("--query-gpu=name,temperature.gpu --format=csv", "name, temperature.gpu|Tesla T4, [N/A]"),
        (
            "--query-gpu=memory.used,utilization.gpu --format=csv",
            "memory.used [MiB], utilization.gpu [%]|220 MiB, 0 %",
        ),
        ("--query-compute-apps=used_memory --format=csv,noheader", "220 MiB"),
        (COUNTED + " | head -n 1", ""),
        ("", ""),
    ],
)
def test_it_tells_of_what_is_known_and_nothing_else(options, expected):
    lines = [line for line in printed(options) if line]
    assert lines == (expected.split("|") * 4 if expected else [])
