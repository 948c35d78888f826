"""Every public name of torch.cuda and torch.accelerator, called once: what it answers on the oracle.

    python -m tools.oracle.face             # compare the simulated GPU with the oracle
    python -m tools.oracle.face --keep      # and keep the oracle's answers as test data

Each line of CALLS names what is called and is a snippet whose last expression is the answer, kept as its `repr`, or as
"Type: message" where it raises. `tests/oracle/test_public_names.py` compares the simulated GPU's answers with the
stored ones, or holds it to a refusal by name, and that no public name is left out. The names that only a CUDA build has
are stored too, because a simulated GPU may add these to torch, and no others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from tools.oracle import run

STORED = run.ROOT / "tests" / "data" / "oracle" / "public_names.json"
GPU = "H100"

MODULES = (
    "torch.cuda",
    "torch.cuda.memory",
    "torch.cuda.amp",
    "torch.cuda.random",
    "torch.cuda.streams",
    "torch.cuda.graphs",
    "torch.cuda.nvtx",
    "torch.cuda.profiler",
    "torch.cuda.tunable",
    "torch.cuda.jiterator",
    "torch.cuda.comm",
    "torch.cuda.nccl",
    "torch.cuda.gds",
    "torch.cuda.green_contexts",
    "torch.accelerator",
    "torch.accelerator.memory",
    "torch.accelerator.graphs",
    "torch.backends.cuda",
    "torch.backends.cudnn",
)
HOLDERS = (
    "torch",
    "torch._C",
    "torch._C._autograd",
    "torch._C._distributed_c10d",
    "torch._C._nested",
    "torch.accelerator",
    "torch.autograd",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.backends.cusparselt",
    "torch.cuda",
    "torch.cuda.gds",
    "torch.cuda.graphs",
    "torch.cuda.memory",
    "torch.cuda.random",
    "torch.cuda.streams",
    "torch.distributed",
    "torch.nn.functional",
    "torch.overrides",
    "torch.random",
    "torch.version",
)
"""Modules whose names are compared."""

X = "torch.ones(1000, device='cuda')"
_DTYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")

BUILD = (
    "torch.__version__",
    "torch.version.__version__",
    "torch.version.cuda",
    "torch.version.hip",
    "torch.version.xpu",
    "[part in torch.__config__.show() for part in ('CUDA Runtime 13.0', 'CuDNN 92.0', 'USE_CUDA=1', 'USE_NCCL=ON')]",
    "torch.has_cuda",
    "torch.has_cudnn",
    "torch._C._has_cuda",
    "torch._C._has_cudnn",
    "torch._C._has_cusparselt",
    "torch._C._has_magma",
    "torch._C._cuda_getCompiledVersion()",
    "torch._C._cuda_getArchFlags()",
    "torch._C._cudnn.getRuntimeVersion()",
    "torch.backends.cusparselt.is_available()",
    "torch.backends.cusparselt.version()",
    "torch.backends.cuda.preferred_linalg_library('magma')",
    "torch.distributed.is_nccl_available()",
    "torch.cuda._is_compiled()",
    "torch.utils.collect_env.get_pretty_env_info().count('CUDA used to build PyTorch: 13.0')",
)
"""What programs ask to find out how PyTorch was built."""

CALLS = {
    **{f"build: {question}": question for question in BUILD},
    **{f"torch.cuda.{name}Tensor": f"torch.cuda.{name}Tensor.__module__" for name in _DTYPES},
    **{
        f"torch.cuda.{name}Storage": f"torch.cuda.{name}Storage.__name__"
        for name in (*_DTYPES, "ComplexDouble", "ComplexFloat")
    },
    "torch.cuda.CUDAGraph": "torch.cuda.CUDAGraph().pool()",
    "torch.cuda.CudaError": "issubclass(torch.cuda.CudaError, RuntimeError)",
    "torch.cuda.DeferredCudaCallError": "torch.cuda.DeferredCudaCallError.__name__",
    "torch.cuda.Event": "e = torch.cuda.Event(); e.record(); e.synchronize(); e.query()",
    "torch.cuda.ExternalStream": "torch.cuda.ExternalStream(0).cuda_stream",
    "torch.cuda.Stream": "s = torch.cuda.Stream(); s.query(), s.device, s.device_index, s.device_type, s.priority",
    "torch.cuda.StreamContext": (
        "s = torch.cuda.Stream()\nwith torch.cuda.StreamContext(s): current = torch.cuda.current_stream() == s\ncurrent"
    ),
    "torch.cuda.GreenContext": "torch.cuda.GreenContext.create(num_sms=8)",
    "torch.cuda.amp": "torch.cuda.amp.__name__",
    "torch.cuda.caching_allocator_alloc": "p = torch.cuda.caching_allocator_alloc(1000); torch.cuda.memory_allocated()",
    "torch.cuda.caching_allocator_delete": "torch.cuda.caching_allocator_delete(p); torch.cuda.memory_allocated()",
    "torch.cuda.caching_allocator_disabled": "torch.cuda.caching_allocator_disabled().__enter__()",
    "torch.cuda.caching_allocator_enable": (
        "torch.cuda.caching_allocator_enable(True); torch._C._cuda_cudaCachingAllocator_is_enabled()"
    ),
    "torch.cuda.can_device_access_peer": "torch.cuda.can_device_access_peer(0, 1)",
    "torch.cuda.check_error": "torch.cuda.check_error(0)",
    "torch.cuda.cudaStatus": "torch.cuda.cudaStatus.SUCCESS",
    "torch.cuda.cudart": "torch.cuda.cudart().cudaMemGetInfo(0)[1]",
    "torch.cuda.current_blas_handle": "torch.cuda.current_blas_handle() != 0",
    "torch.cuda.current_solver_handle": "torch.cuda.current_solver_handle()",
    "torch.cuda.current_device": "torch.cuda.current_device()",
    "torch.cuda.current_stream": "s = torch.cuda.current_stream(); s.stream_id, s.cuda_stream, repr(s)",
    "torch.cuda.default_generators": "len(torch.cuda.default_generators), torch.cuda.default_generators[0].device",
    "torch.cuda.default_stream": "torch.cuda.default_stream().stream_id",
    "torch.cuda.device": "\nwith torch.cuda.device(0) as d: found = d\nfound, torch.cuda.current_device()",
    "torch.cuda.device_count": "torch.cuda.device_count()",
    "torch.cuda.device_memory_used": "type(torch.cuda.device_memory_used())",
    "torch.cuda.device_of": f"\nwith torch.cuda.device_of({X}) as d: found = d\nfound",
    "torch.cuda.empty_cache": "torch.cuda.empty_cache()",
    "torch.cuda.get_allocator_backend": "torch.cuda.get_allocator_backend()",
    "torch.cuda.CUDAPluggableAllocator": "torch.cuda.CUDAPluggableAllocator('no.so', 'alloc', 'free')",
    "torch.cuda.change_current_allocator": (
        "torch.cuda.change_current_allocator(torch.cuda.memory._get_current_allocator())"
    ),
    "torch.cuda.get_arch_list": "torch.cuda.get_arch_list()",
    "torch.cuda.get_device_capability": "torch.cuda.get_device_capability()",
    "torch.cuda.get_device_name": "torch.cuda.get_device_name()",
    "torch.cuda.get_device_properties": (
        "p = torch.cuda.get_device_properties(); [p.name, p.major, p.minor, p.total_memory, p.multi_processor_count, "
        "p.max_threads_per_multi_processor, p.warp_size, p.L2_cache_size, p.is_integrated, p.is_multi_gpu_board, "
        "p.regs_per_multiprocessor, p.shared_memory_per_block, p.max_threads_per_block]"
    ),
    "torch.cuda.get_gencode_flags": "torch.cuda.get_gencode_flags()",
    "torch.cuda.get_per_process_memory_fraction": "torch.cuda.get_per_process_memory_fraction()",
    "torch.cuda.get_rng_state": "torch.cuda.manual_seed(5); torch.cuda.get_rng_state()",
    "torch.cuda.get_rng_state_all": "len(torch.cuda.get_rng_state_all())",
    "torch.cuda.get_stream_from_external": "torch.cuda.get_stream_from_external(0).cuda_stream",
    "torch.cuda.get_sync_debug_mode": "torch.cuda.get_sync_debug_mode()",
    "torch.cuda.graph": (
        f"x = {X}; g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): y = x * 2\n"
        "g.replay(); y.shape, g.pool()[0] > 0, g.pool()[1]"
    ),
    "torch.cuda.graph_pool_handle": "torch.cuda.graph_pool_handle()[0]",
    "torch.cuda.graphs": "torch.cuda.graphs.__name__",
    "torch.cuda.has_half": "torch.cuda.has_half",
    "torch.cuda.has_magma": "torch.cuda.has_magma",
    "torch.cuda.host_memory_stats": "sorted(torch.cuda.host_memory_stats())",
    "torch.cuda.host_memory_stats_as_nested_dict": "sorted(torch.cuda.host_memory_stats_as_nested_dict())",
    "torch.cuda.init": "torch.cuda.init()",
    "torch.cuda.initial_seed": "torch.cuda.manual_seed(7); torch.cuda.initial_seed()",
    "torch.cuda.ipc_collect": "torch.cuda.ipc_collect()",
    "torch.cuda.is_available": "torch.cuda.is_available()",
    "torch.cuda.is_bf16_supported": "torch.cuda.is_bf16_supported(), torch.cuda.is_bf16_supported(False)",
    "torch.cuda.is_current_stream_capturing": "torch.cuda.is_current_stream_capturing()",
    "torch.cuda.is_initialized": "torch.cuda.is_initialized()",
    "torch.cuda.is_tf32_supported": "torch.cuda.is_tf32_supported()",
    "torch.cuda.jiterator": (
        "f = torch.cuda.jiterator._create_jit_fn('template <typename T> T my(T x) { return x + 1; }'); f("
        + X
        + ").shape"
    ),
    "torch.cuda.list_gpu_processes": "type(torch.cuda.list_gpu_processes())",
    "torch.cuda.make_graphed_callables": (
        "m = torch.nn.Linear(8, 8).cuda(); "
        "g = torch.cuda.make_graphed_callables(m, (torch.ones(4, 8, device='cuda'),)); "
        "g(torch.ones(4, 8, device='cuda')).shape"
    ),
    "torch.cuda.manual_seed": "torch.cuda.manual_seed(3); torch.cuda.initial_seed()",
    "torch.cuda.manual_seed_all": "torch.cuda.manual_seed_all(4); torch.cuda.initial_seed()",
    "torch.cuda.max_memory_allocated": f"x = {X}; torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()",
    "torch.cuda.max_memory_cached": "torch.cuda.max_memory_cached() > 0",
    "torch.cuda.max_memory_reserved": "torch.cuda.max_memory_reserved() > 0",
    "torch.cuda.mem_get_info": "torch.cuda.mem_get_info()[1]",
    "torch.cuda.memory": "torch.cuda.memory.__name__",
    "torch.cuda.memory_allocated": "type(torch.cuda.memory_allocated())",
    "torch.cuda.memory_cached": "torch.cuda.memory_cached() > 0",
    "torch.cuda.memory_reserved": "torch.cuda.memory_reserved() > 0",
    "torch.cuda.memory_snapshot": "sorted(torch.cuda.memory_snapshot()[0])",
    "torch.cuda.memory_stats": "sorted(name for name in torch.cuda.memory_stats() if 'private' not in name)",
    "torch.cuda.memory_stats_as_nested_dict": "sorted(torch.cuda.memory_stats_as_nested_dict())",
    "torch.cuda.memory_summary": "torch.cuda.memory_summary().splitlines()[1]",
    "torch.cuda.memory_usage": "type(torch.cuda.memory_usage())",
    "torch.cuda.MemPool": "pool = torch.cuda.MemPool(); pool.id[0], pool.use_count()",
    "torch.cuda.use_mem_pool": (
        f"\nwith torch.cuda.use_mem_pool(pool): y = {X}\nlen(pool.snapshot()), pool.snapshot()[0]['total_size']"
    ),
    "torch.cuda.temperature": "type(torch.cuda.temperature())",
    "torch.cuda.power_draw": "type(torch.cuda.power_draw())",
    "torch.cuda.clock_rate": "type(torch.cuda.clock_rate())",
    "torch.cuda.nccl": "torch.cuda.nccl.__name__",
    "torch.cuda.nvtx": "torch.cuda.nvtx.__name__",
    "torch.cuda.profiler": "torch.cuda.profiler.__name__",
    "torch.cuda.random": "torch.cuda.random.__name__",
    "torch.cuda.reset_accumulated_host_memory_stats": "torch.cuda.reset_accumulated_host_memory_stats()",
    "torch.cuda.reset_accumulated_memory_stats": "torch.cuda.reset_accumulated_memory_stats()",
    "torch.cuda.reset_max_memory_allocated": "torch.cuda.reset_max_memory_allocated()",
    "torch.cuda.reset_max_memory_cached": "torch.cuda.reset_max_memory_cached()",
    "torch.cuda.reset_peak_host_memory_stats": "torch.cuda.reset_peak_host_memory_stats()",
    "torch.cuda.reset_peak_memory_stats": "torch.cuda.reset_peak_memory_stats()",
    "torch.cuda.seed": "torch.cuda.seed()",
    "torch.cuda.seed_all": "torch.cuda.seed_all()",
    "torch.cuda.set_device": "torch.cuda.set_device('cuda:0'); torch.cuda.set_device(0)",
    "torch.cuda.set_per_process_memory_fraction": (
        "torch.cuda.set_per_process_memory_fraction(0.5); f = torch.cuda.get_per_process_memory_fraction(); "
        "torch.cuda.set_per_process_memory_fraction(1.0); f"
    ),
    "torch.cuda.set_rng_state": "torch.cuda.set_rng_state(torch.cuda.get_rng_state())",
    "torch.cuda.set_rng_state_all": "torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())",
    "torch.cuda.set_stream": "torch.cuda.set_stream(torch.cuda.default_stream())",
    "torch.cuda.set_sync_debug_mode": (
        "torch.cuda.set_sync_debug_mode('warn'); m = torch.cuda.get_sync_debug_mode(); "
        "torch.cuda.set_sync_debug_mode(0); m"
    ),
    "torch.cuda.sparse": "torch.cuda.sparse.__name__",
    "torch.cuda.stream": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s): current = torch.cuda.current_stream() == s\ncurrent"
    ),
    "torch.cuda.streams": "torch.cuda.streams.__name__",
    "torch.cuda.synchronize": "torch.cuda.synchronize()",
    "torch.cuda.tunable": "torch.cuda.tunable.__name__",
    "torch.cuda.utilization": "type(torch.cuda.utilization())",
    "torch.cuda.amp.amp_definitely_not_available": "torch.cuda.amp.common.amp_definitely_not_available()",
    "torch.cuda.amp.autocast": "torch.cuda.amp.autocast().fast_dtype",
    "torch.cuda.amp.custom_bwd": "callable(torch.cuda.amp.custom_bwd(lambda x: x))",
    "torch.cuda.amp.custom_fwd": "callable(torch.cuda.amp.custom_fwd(lambda x: x))",
    "torch.cuda.amp.GradScaler": "torch.cuda.amp.GradScaler().get_scale()",
    "torch.cuda.nvtx.range_push": "torch.cuda.nvtx.range_push('a')",
    "torch.cuda.nvtx.range_pop": "torch.cuda.nvtx.range_pop()",
    "torch.cuda.nvtx.range_start": "torch.cuda.nvtx.range_start('a')",
    "torch.cuda.nvtx.range_end": "torch.cuda.nvtx.range_end(0)",
    "torch.cuda.nvtx.mark": "torch.cuda.nvtx.mark('a')",
    "torch.cuda.nvtx.range": "\nwith torch.cuda.nvtx.range('a'): pass\n0",
    "torch.cuda.profiler.start": "torch.cuda.profiler.start()",
    "torch.cuda.profiler.stop": "torch.cuda.profiler.stop()",
    "torch.cuda.profiler.profile": "\nwith torch.cuda.profiler.profile(): pass\n0",
    "torch.cuda.tunable.enable": "torch.cuda.tunable.enable(False)",
    "torch.cuda.tunable.is_enabled": "torch.cuda.tunable.is_enabled()",
    "torch.cuda.tunable.tuning_enable": "torch.cuda.tunable.tuning_enable(False)",
    "torch.cuda.tunable.tuning_is_enabled": "torch.cuda.tunable.tuning_is_enabled()",
    "torch.cuda.tunable.record_untuned_enable": "torch.cuda.tunable.record_untuned_enable(False)",
    "torch.cuda.tunable.record_untuned_is_enabled": "torch.cuda.tunable.record_untuned_is_enabled()",
    "torch.cuda.tunable.set_max_tuning_duration": "torch.cuda.tunable.set_max_tuning_duration(10)",
    "torch.cuda.tunable.get_max_tuning_duration": "torch.cuda.tunable.get_max_tuning_duration()",
    "torch.cuda.tunable.set_max_tuning_iterations": "torch.cuda.tunable.set_max_tuning_iterations(10)",
    "torch.cuda.tunable.get_max_tuning_iterations": "torch.cuda.tunable.get_max_tuning_iterations()",
    "torch.cuda.tunable.set_filename": "torch.cuda.tunable.set_filename('t.csv')",
    "torch.cuda.tunable.get_filename": "torch.cuda.tunable.get_filename()",
    "torch.cuda.tunable.get_results": "torch.cuda.tunable.get_results()",
    "torch.cuda.tunable.get_validators": "type(torch.cuda.tunable.get_validators())",
    "torch.cuda.tunable.read_file": "torch.cuda.tunable.read_file('no such file.csv')",
    "torch.cuda.tunable.tune_gemm_in_file": "torch.cuda.tunable.tune_gemm_in_file('no such file.csv')",
    "torch.cuda.tunable.mgpu_tune_gemm_in_file": "torch.cuda.tunable.mgpu_tune_gemm_in_file('no*.csv', 1)",
    "torch.cuda.tunable.set_rotating_buffer_size": "torch.cuda.tunable.set_rotating_buffer_size(10)",
    "torch.cuda.tunable.get_rotating_buffer_size": "torch.cuda.tunable.get_rotating_buffer_size()",
    "torch.cuda.tunable.set_numerical_check_tolerances": "torch.cuda.tunable.set_numerical_check_tolerances(False)",
    "torch.cuda.comm.broadcast": f"[t.shape for t in torch.cuda.comm.broadcast({X}, ['cuda:0'])]",
    "torch.cuda.comm.broadcast_coalesced": f"len(torch.cuda.comm.broadcast_coalesced([{X}], ['cuda:0']))",
    "torch.cuda.comm.reduce_add": f"torch.cuda.comm.reduce_add([{X}]).shape",
    "torch.cuda.comm.reduce_add_coalesced": f"len(torch.cuda.comm.reduce_add_coalesced([[{X}]]))",
    "torch.cuda.comm.scatter": "[t.shape for t in torch.cuda.comm.scatter(torch.ones(4, 4), ['cuda:0'])]",
    "torch.cuda.comm.gather": f"torch.cuda.comm.gather([{X}], destination='cuda:0').shape",
    "torch.cuda.nccl.is_available": f"torch.cuda.nccl.is_available([{X}])",
    "torch.cuda.nccl.version": "torch.cuda.nccl.version()",
    "torch.cuda.nccl.unique_id": "type(torch.cuda.nccl.unique_id())",
    "torch.cuda.nccl.init_rank": "torch.cuda.nccl.init_rank(1, b'', 0)",
    "torch.cuda.nccl.all_reduce": f"torch.cuda.nccl.all_reduce([{X}])",
    "torch.cuda.nccl.reduce": f"torch.cuda.nccl.reduce([{X}])",
    "torch.cuda.nccl.broadcast": f"torch.cuda.nccl.broadcast([{X}])",
    "torch.cuda.nccl.all_gather": f"torch.cuda.nccl.all_gather([{X}], [{X}])",
    "torch.cuda.nccl.reduce_scatter": f"torch.cuda.nccl.reduce_scatter([{X}], [{X}])",
    "torch.cuda.gds.gds_register_buffer": f"torch.cuda.gds.gds_register_buffer({X}.untyped_storage())",
    "torch.cuda.gds.gds_deregister_buffer": f"torch.cuda.gds.gds_deregister_buffer({X}.untyped_storage())",
    "torch.cuda.gds.GdsFile": "torch.cuda.gds.GdsFile('t.bin', 0)",
    "torch.accelerator.Graph": (
        "g = torch.accelerator.Graph()\nwith torch.Stream('cuda'), g: y = x * 2\ng.replay(); y.shape"
    ),
    "torch.accelerator.current_accelerator": "torch.accelerator.current_accelerator(check_available=True)",
    "torch.accelerator.current_device_idx": "torch.accelerator.current_device_idx()",
    "torch.accelerator.current_device_index": "torch.accelerator.current_device_index()",
    "torch.accelerator.get_device_capability": (
        "sorted(map(str, torch.accelerator.get_device_capability(0)['supported_dtypes']))"
    ),
    "torch.accelerator.current_stream": "torch.accelerator.current_stream().stream_id",
    "torch.accelerator.device_count": "torch.accelerator.device_count()",
    "torch.accelerator.device_index": "\nwith torch.accelerator.device_index(0): i = torch.cuda.current_device()\ni",
    "torch.accelerator.empty_cache": "torch.accelerator.empty_cache()",
    "torch.accelerator.empty_host_cache": "torch.accelerator.empty_host_cache()",
    "torch.accelerator.get_memory_info": "torch.accelerator.get_memory_info()[1]",
    "torch.accelerator.is_available": "torch.accelerator.is_available()",
    "torch.accelerator.max_memory_allocated": "torch.accelerator.max_memory_allocated() > 0",
    "torch.accelerator.max_memory_reserved": "torch.accelerator.max_memory_reserved() > 0",
    "torch.accelerator.memory_allocated": "torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()",
    "torch.accelerator.memory_reserved": "torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()",
    "torch.accelerator.memory_stats": (
        "sorted(name for name in torch.accelerator.memory_stats() if 'private' not in name)"
    ),
    "torch.accelerator.reset_accumulated_memory_stats": "torch.accelerator.reset_accumulated_memory_stats()",
    "torch.accelerator.reset_peak_memory_stats": "torch.accelerator.reset_peak_memory_stats()",
    "torch.accelerator.set_device_idx": "torch.accelerator.set_device_idx(0)",
    "torch.accelerator.set_device_index": "torch.accelerator.set_device_index(0)",
    "torch.accelerator.set_stream": "torch.accelerator.set_stream(torch.accelerator.current_stream())",
    "torch.accelerator.synchronize": "torch.accelerator.synchronize()",
    "torch.backends.cuda.is_built": "torch.backends.cuda.is_built()",
    "torch.backends.cuda.cuFFTPlanCacheAttrContextProp": "torch.backends.cuda.cuFFTPlanCacheAttrContextProp.__name__",
    "torch.backends.cuda.cuFFTPlanCache": "torch.backends.cuda.cuFFTPlanCache(0).max_size",
    "torch.backends.cuda.cuFFTPlanCacheManager": "torch.backends.cuda.cuFFTPlanCacheManager()[0].size",
    "torch.backends.cuda.cufft_plan_cache": "torch.backends.cuda.cufft_plan_cache.max_size",
    "torch.backends.cuda.cuBLASModule": "torch.backends.cuda.cuBLASModule().allow_tf32",
    "torch.backends.cuda.matmul": "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.preferred_linalg_library": "torch.backends.cuda.preferred_linalg_library()",
    "torch.backends.cuda.preferred_blas_library": "torch.backends.cuda.preferred_blas_library()",
    "torch.backends.cuda.preferred_rocm_fa_library": "torch.backends.cuda.preferred_rocm_fa_library()",
    "torch.backends.cuda.cublas_workspace_size": "torch.backends.cuda.cublas_workspace_size()",
    "torch.backends.cuda.cublaslt_workspace_size": "torch.backends.cuda.cublaslt_workspace_size()",
    "torch.backends.cuda.blas_workspace_size": "torch.backends.cuda.blas_workspace_size()",
    "torch.backends.cuda.is_ck_sdpa_available": "torch.backends.cuda.is_ck_sdpa_available()",
    "torch.backends.cuda.SDPAParams": (
        "q = torch.ones(2, 4, 16, 64, device='cuda', dtype=torch.half); "
        "params = torch.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False); params.dropout"
    ),
    "torch.backends.cuda.can_use_flash_attention": "torch.backends.cuda.can_use_flash_attention(params)",
    "torch.backends.cuda.can_use_efficient_attention": "torch.backends.cuda.can_use_efficient_attention(params)",
    "torch.backends.cuda.can_use_cudnn_attention": "torch.backends.cuda.can_use_cudnn_attention(params)",
    "torch.backends.cuda.is_flash_attention_available": "torch.backends.cuda.is_flash_attention_available()",
    "torch.backends.cuda.enable_cudnn_sdp": "torch.backends.cuda.enable_cudnn_sdp(True)",
    "torch.backends.cuda.cudnn_sdp_enabled": "torch.backends.cuda.cudnn_sdp_enabled()",
    "torch.backends.cuda.enable_flash_sdp": "torch.backends.cuda.enable_flash_sdp(True)",
    "torch.backends.cuda.flash_sdp_enabled": "torch.backends.cuda.flash_sdp_enabled()",
    "torch.backends.cuda.enable_mem_efficient_sdp": "torch.backends.cuda.enable_mem_efficient_sdp(True)",
    "torch.backends.cuda.mem_efficient_sdp_enabled": "torch.backends.cuda.mem_efficient_sdp_enabled()",
    "torch.backends.cuda.enable_math_sdp": "torch.backends.cuda.enable_math_sdp(True)",
    "torch.backends.cuda.math_sdp_enabled": "torch.backends.cuda.math_sdp_enabled()",
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)"
    ),
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()"
    ),
    "torch.backends.cuda.sdp_kernel": "\nwith torch.backends.cuda.sdp_kernel(): pass\n0",
    "torch.backends.cudnn.version": "torch.backends.cudnn.version()",
    "torch.backends.cudnn.is_available": "torch.backends.cudnn.is_available()",
    "torch.backends.cudnn.is_acceptable": f"torch.backends.cudnn.is_acceptable({X})",
    "torch.backends.cudnn.enabled": "torch.backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark": "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.benchmark_limit": "torch.backends.cudnn.benchmark_limit",
    "torch.backends.cudnn.set_flags": "torch.backends.cudnn.set_flags(_benchmark=False)",
    "torch.backends.cudnn.flags": "\nwith torch.backends.cudnn.flags(enabled=True): pass\n0",
}


def public_names() -> set[str]:
    """The public names of MODULES, as in CALLS."""
    found = set()
    for name in _modules():
        module = importlib.import_module(name)
        above = name.rpartition(".")[0]
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == name]
        for key in {*getattr(module, "__all__", ()), *(key for key in own if key[0] != "_")}:
            twin = getattr(importlib.import_module(above), key, None) if above == "torch.cuda" else None
            if twin is not getattr(module, key) and not name.startswith("torch.accelerator."):
                found.add(f"{name}.{key}")
    return found


def _modules() -> list[str]:
    """Those of MODULES that this torch has: 2.11 has no torch.accelerator.graphs."""
    importlib.import_module("torch")
    return [name for name in MODULES if name in sys.modules or importlib.util.find_spec(name)]


def names() -> dict[str, list[str]]:
    """What is in PyTorch's modules, by module."""
    return {name: sorted(dir(importlib.import_module(name))) for name in HOLDERS}


def answers() -> dict[str, str]:
    """What each of CALLS answers on the "cuda" of this process."""
    import torch

    for name in (*_modules(), "torch.backends.cusparselt", "torch.utils.collect_env"):
        importlib.import_module(name)
    torch.ones(1, device="cuda")
    names = {"torch": torch}
    return {name: answer(code, names) for name, code in CALLS.items()}


def answer(code: str, names: dict) -> str:
    """The `repr` of the last expression of a snippet, or the error it raised."""
    cut = max(code.rfind("\n"), code.rfind("; "))
    before, last = (code[:cut], code[cut + 1 :].strip()) if cut >= 0 else ("", code)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            exec(before, names)
            return repr(eval(last, names))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def on_oracle(version: str = run.DEFAULT_VERSION) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What they answer on the oracle, and the names there. Raises RuntimeError with its output where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "answers.json")
        done = subprocess.run(
            [sys.executable, "-m", "tools.oracle.face", "--on-oracle", str(found)],
            env=run.environment(version, GPU),
            cwd=run.ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the oracle ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return json.loads(found.read_text())


def main() -> None:
    """Compare, and keep the oracle's answers with --keep."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.face")
    parser.add_argument("--keep", action="store_true", help="keep the oracle's answers as test data")
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    parser.add_argument("--on-oracle", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_oracle:
        options.on_oracle.write_text(json.dumps([answers(), names()]))
        return
    import simgpu

    oracle, there = on_oracle(options.torch)
    here = names()
    added = {name: sorted({*there[name]} - {*here[name]}) for name in HOLDERS}
    with simgpu.simulated_gpu(GPU):
        ours = answers()
    different = {name: (oracle[name], ours[name]) for name in CALLS if oracle[name] != ours[name]}
    for name, (oracles, simulated) in different.items():
        print(f"{name}\n  oracle:    {oracles}\n  simulated: {simulated}")
    print(f"{len(CALLS) - len(different)} of {len(CALLS)} equal")
    if options.keep:
        kept = {"torch": options.torch, "gpu": GPU, "answers": oracle, "names": added}
        STORED.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
