from types import SimpleNamespace

import pytest
import torch

from rematpass import torch_compat
from rematpass.check import measure
from rematpass.check.measure import device_memory, measure_peak, storage_bytes
from rematpass.cost.memory import DeviceMemory
from rematpass.errors import OptionError

MIB = 2**20


def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8)


def peak(step):
    return measure_peak(step, device="cpu")


def test_one_freed_before_the_other():
    def step():
        first = tensor(4)
        del first
        second = tensor(4)
        del second

    assert peak(step) == 4 * MIB


def test_both_alive():
    def step():
        first = tensor(4)
        second = tensor(4)
        del first
        third = tensor(2)
        return second, third

    assert peak(step) == 8 * MIB


def test_nothing_allocated():
    held = tensor(4)
    assert peak(lambda: held.view(-1)) == 0


def test_what_was_live_before_does_not_count():
    held = tensor(16)
    assert peak(held.clone) == 16 * MIB


def test_backward_counts():
    weight = torch.ones(MIB, requires_grad=True)  # 4 MiB

    def step():
        (weight.exp().sum()).backward()

    # exp keeps its 4 MiB result; its gradient multiplies into the 4 MiB that the parameter then holds.
    assert 8 * MIB <= peak(step) < 9 * MIB


@pytest.mark.parametrize("is_allocated_in_a_profile", [True, False])
def test_history_does_not_change_the_answer(is_allocated_in_a_profile):
    held = []

    def fill():
        held.append(tensor(4))

    def step():
        held.clear()
        held.append(tensor(4))

    peak(fill) if is_allocated_in_a_profile else fill()
    assert peak(step) == 4 * MIB
    assert peak(step) == 4 * MIB


def test_only_cpu_events_count():
    def event(time, size, device):
        fields = SimpleNamespace(ptr=time, alloc_size=size, device=torch.device(device))
        tag = SimpleNamespace(name="Allocation")
        return SimpleNamespace(start_time_ns=time, extra_fields=fields, tag=tag, children=[])

    root = SimpleNamespace(
        tag=SimpleNamespace(name="TorchOp"), children=[event(2, 7, "cpu"), event(1, 5, "cuda"), event(1, 3, "cpu")]
    )
    results = SimpleNamespace(experimental_event_tree=lambda: [root])
    profiled = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    assert torch_compat.cpu_allocations(profiled) == [(1, 3), (2, 7)]


def test_errors_of_the_step_come_through_and_leave_no_profiler():
    def step():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        peak(step)
    assert peak(lambda: tensor(1)) == MIB


def test_default_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measure_peak(lambda: tensor(1)) == measure_peak(lambda: tensor(1), device=torch.device("cpu")) == MIB


@pytest.mark.parametrize("device", ["meta", "mps"])
def test_other_devices_are_refused(device):
    with pytest.raises(OptionError, match=device):
        measure_peak(lambda: None, device=device)
    with pytest.raises(OptionError, match=device):
        device_memory(torch.device(device))


def test_storage_bytes_counts_each_storage_once():
    base = tensor(1)
    assert storage_bytes([base, base[:5], base.view(2, -1)[1], tensor(2)]) == 3 * MIB
    assert storage_bytes(tensor(1) for _ in range(3)) == 3 * MIB
    assert storage_bytes([torch.empty(8, device="meta"), torch.empty(4, device="meta")]) == 48
    assert storage_bytes([]) == 0


def test_device_memory_of_the_cpu(monkeypatch):
    monkeypatch.setattr(measure, "host_memory", lambda: DeviceMemory(10, 5))
    assert device_memory(torch.device("cpu")) == DeviceMemory(10, 5)


def test_device_memory_of_cuda_counts_unused_reserve(monkeypatch):
    for name, answer in {"mem_get_info": (50, 100), "memory_reserved": 30, "memory_allocated": 10}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    assert device_memory(torch.device("cuda")) == DeviceMemory(100, 70)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_peak():
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")

    def step():
        first = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        second = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        del first
        return second

    assert measure_peak(step) == 8 * MIB
    assert device_memory(held.device).free_bytes <= device_memory(held.device).total_bytes
