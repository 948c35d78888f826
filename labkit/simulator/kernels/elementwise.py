"""Pointwise operators whose CUDA code allocates otherwise than its outputs in order."""

from labkit.simulator.kernels.launch import Launch, rule


@rule("native_dropout.default")
def mask_before_output(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/Dropout.cu, dropout_cuda: the mask (1 B an element), then the output."""
    output, mask = launch.outputs
    launch.give(mask, output)


@rule("_softmax_backward_data.default")
def gradient_times_output(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: the product grad * output, as a temporary."""
    (grad_input,) = launch.outputs
    launch.give(grad_input)
    launch.scratch_like(launch.args[0])
