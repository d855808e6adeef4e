"""Live bytes of generated wrappers, counted while they run on tensors without memory."""

import pytest
import torch

from bench.generated import Memory, allocate_fake, make_counted, parse_arguments, run_wrapper
from rematpass.graph.operators import CUDA_BLOCK_BYTES

WRAPPER = """
import torch
async_compile = AsyncCompile()
kernel = async_compile.triton('kernel', '''source''', device_str='cuda')
async_compile.wait(globals())
def call(args):
    primal, = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((256, ), (1, ), torch.float32)
        raw_stream0 = get_raw_stream(0)
        kernel.run(primal, buf0, 256, stream=raw_stream0)
        buf1 = empty_strided_cuda((16, 16), (16, 1), torch.float32)
        extern_kernels.mm(reinterpret_tensor(buf0, (16, 16), (16, 1), 0), primal, out=buf1)
        del buf0
        buf2 = buf1; del buf1  # reuse
        kernel.run(buf2, 256, stream=raw_stream0)
        buf3 = torch.ops.aten.sin.default(buf2)
        del buf2
    return (buf3, )
"""


def test_what_is_deleted_is_gone_and_what_is_viewed_or_reused_counts_once():

    primal = allocate_fake((16, 16), (16, 1), torch.float32)
    memory = Memory([primal])
    (result,) = run_wrapper(WRAPPER, [primal], memory)
    assert result.shape == (16, 16)
    assert memory.peak_bytes == 3 * 1024  # the batch, and twice two buffers
    memory = Memory([primal, allocate_fake((1,), (1,), torch.float32)])
    run_wrapper(WRAPPER, [primal], memory)
    assert memory.peak_bytes == 3 * 1024 + CUDA_BLOCK_BYTES
    assert sorted(name for _, name in memory.alive) == ["buf0", "held", "new", "primal"]


def test_a_large_model_takes_no_memory_and_has_its_own_precision():
    counted = make_counted("llama_fused", "large", None)
    assert counted.dtype == "bf16"
    assert all(tensor.is_meta for tensor in (*counted.model.parameters(), *counted.inputs))
    assert sum(p.numel() for p in counted.model.parameters()) > 10**9
    assert make_counted("deepnet", "large", "bf16").dtype == "bf16"


def test_each_size_has_its_cases_and_its_file(capsys):
    assert parse_arguments(["--json"]).json.name == "generated_gpu.json"
    assert parse_arguments(["--json", "--size", "large"]).json.name == "generated_gpu_large.json"
    with pytest.raises(SystemExit):
        parse_arguments(["--size", "large", "--cases", "graph"])
    assert "no case 'graph' in size 'large'; known: llama_plain" in capsys.readouterr().err
