"""The filter as instructions, played here: which calls it lets through."""

import struct

import pytest

from burnish.sandbox.seccomp import allowed, program

ALLOW, REFUSE, MISSING, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ARCHITECTURE = 0xC000003E


def verdict(code: bytes, number: int, *arguments: int, architecture: int = ARCHITECTURE) -> int:
    """What the kernel would do with this call."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *values)
    lines = list(struct.iter_unpack("<HBBI", code))
    place, register = 0, 0
    while True:
        kind, if_true, if_false, value = lines[place]
        place += 1
        if kind == 0x20:
            (register,) = struct.unpack_from("<I", data, value)
        elif kind == 0x06:
            return int(value)
        elif kind == 0x54:
            register &= value
        else:
            true = {0x15: register == value, 0x35: register >= value}[kind]
            place += if_true if true else if_false


@pytest.fixture
def code() -> bytes:
    return program("x86_64", pid=77, threads=True)


def test_what_python_needs_goes_through(code: bytes) -> None:
    for number in allowed("x86_64").values():
        assert verdict(code, number) == ALLOW


@pytest.mark.parametrize(
    "number",
    [41, 42, 49, 57, 58, 59, 62, 101, 155, 160, 165, 200, 250, 272, 308, 310, 311, 317, 321, 322, 425, 434, 438, 440],
)
def test_what_acts_on_others_does_not(code: bytes, number: int) -> None:
    """Sockets, processes and programs, signals, tracing, mounts, limits, namespaces, memory of others, io_uring."""
    assert verdict(code, number) == REFUSE


def test_threads_but_no_processes(code: bytes) -> None:
    assert verdict(code, 56, 0x3D0F00) == ALLOW  # as the C library starts a thread
    assert verdict(code, 56, 0x01200011) == REFUSE  # as it forks
    assert verdict(code, 56, 0x10900) == REFUSE  # descriptors of its own, beyond the limit
    assert verdict(code, 56, 0x103D0F00) == REFUSE  # a namespace of its own
    assert verdict(code, 56, (1 << 32) | 0x3D0F00) == REFUSE
    assert verdict(code, 435) == MISSING  # so that the C library uses the other one
    assert verdict(program("x86_64", pid=77, threads=False), 56, 0x3D0F00) == REFUSE


def test_limits_are_read_and_not_set(code: bytes) -> None:
    assert verdict(code, 302, 0, 9, 0) == ALLOW
    assert verdict(code, 302, 0, 9, 0x7FFF0000) == REFUSE
    assert verdict(code, 302, 0, 9, 1 << 32) == REFUSE  # the upper half of an address


def test_a_process_ends_itself_only(code: bytes) -> None:
    assert verdict(code, 234, 77) == ALLOW
    assert verdict(code, 234, 78) == REFUSE


def test_requests_to_devices_send_no_signals(code: bytes) -> None:
    assert verdict(code, 16, 1, 0x5401) == ALLOW
    assert verdict(code, 16, 3, 0x8901) == REFUSE
    assert verdict(code, 16, 3, 0x5452) == REFUSE


def test_pairs_of_sockets_lead_nowhere_else(code: bytes) -> None:
    assert verdict(code, 53, 1) == ALLOW
    assert verdict(code, 53, 2) == REFUSE
    assert verdict(code, 44, 3, 0, 0, 0, 0) == ALLOW
    assert verdict(code, 44, 3, 0, 0, 0, 1 << 40) == REFUSE


def test_descriptors_are_not_made_to_send_signals(code: bytes) -> None:
    assert verdict(code, 72, 0, 3) == ALLOW
    assert verdict(code, 72, 0, 8) == REFUSE


def test_other_tables_of_the_machine_end_the_process(code: bytes) -> None:
    assert verdict(code, 0x40000000) == KILL
    assert verdict(code, 0, architecture=0x40000003) == KILL


def test_the_other_machine_has_a_table() -> None:
    code = program("aarch64", pid=77, threads=True)
    assert verdict(code, 63, architecture=0xC00000B7) == ALLOW
    assert verdict(code, 198, architecture=0xC00000B7) == REFUSE  # socket
    assert set(allowed("aarch64")) < set(allowed("x86_64"))
