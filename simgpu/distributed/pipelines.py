"""Handles what a pipeline's ranks send each other: coalesced messages, and objects that describe the shapes to come."""

import sys
from functools import wraps

from simgpu.distributed import messages, operators


def receiving(receive):
    """Wraps recv_object_list (`receive`): the sender must have run, unless it can only send one thing."""

    @wraps(receive)
    def recv_object_list(object_list, src=None, group=None, *args, **kwargs):
        from torch.distributed import distributed_c10d as c10d

        one = group or c10d._get_default_group()
        if not operators.is_rank(one):
            return receive(object_list, src, group, *args, **kwargs)
        ranks = tuple(c10d.get_process_group_ranks(one))
        sender = kwargs.get("group_src")
        if sender is None and src not in ranks:
            return receive(object_list, src, group, *args, **kwargs)  # from any rank, so PyTorch raises its own error
        sender = ranks.index(src) if sender is None else sender
        way = (ranks, sender, one.rank())
        asking = sys._getframe(1).f_locals
        stage = asking.get("self")
        if stage is not None and _is_stage(stage) and asking.get("src_stage", -1) > stage.stage_index:
            messages.expect(way, lambda: _gradients(stage))
        if not messages.waiting(way):
            raise messages.not_sent(way)
        return receive(object_list, src, group, *args, **kwargs)

    return recv_object_list


def batching(batch):
    """Wraps batch_isend_irecv (`batch`) as one NCCL call, which PyTorch makes only for its own class."""

    @wraps(batch)
    def batch_isend_irecv(p2p_op_list):
        from torch.distributed import distributed_c10d as c10d

        first = p2p_op_list[0] if isinstance(p2p_op_list, list) and p2p_op_list else None
        one = None if not isinstance(first, c10d.P2POp) else first.group or c10d._get_default_group()
        if first is None or one is None or not operators.is_rank(one) or one.name() != "nccl":
            return batch(p2p_op_list)
        c10d._check_p2p_op_list(p2p_op_list)
        with c10d._coalescing_manager(one, first.tensor.device, async_ops=True) as coalesced:
            for op in p2p_op_list:
                peer = {"group_dst" if op.op is c10d.isend else "group_src": op.group_peer}
                op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        return coalesced.works

    return batch_isend_irecv


def _is_stage(one) -> bool:
    module = sys.modules.get("torch.distributed.pipelining.stage")
    return module is not None and isinstance(one, module.PipelineStage)


def _gradients(stage):
    """Returns what the next stage reports about the gradients that it sends back: they are like what it was sent."""
    from torch.distributed.pipelining import _utils

    return _utils._StageBackwardMeta(backward_metas=_utils._derive_grad_metas(stage._stage_meta.outputs))
