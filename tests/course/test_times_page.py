"""docs/times.md says what the published rows and the stored times give, and the clock still gives those times."""

import pytest
import torch

import labkit
from simgpu.recording.workloads import vision
from tools.times import page, rows


def test_the_page_is_written_from_the_files():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python -m tools.times"


def test_every_time_is_of_a_published_row():
    names = [row.name for row in rows.rows()]
    assert len(set(names)) == len(names)
    found = page.stored()
    assert set(found) <= set(names) and len(found) >= 60
    kept = [row for row in rows.rows() if row.name in found]
    assert len({rows.TABLES[row.table].gpu for row in kept}) >= 3
    assert any(rows.TABLES[row.table].training for row in kept)


def test_a_table_that_played_no_part_in_any_choice_is_on_the_page():
    kept = [row for row in rows.rows() if row.name in page.stored()]
    reached = page.goals(kept, page.stored())
    assert reached["inference"] < 0.06 and reached["training"] < 0.15
    assert reached["inference, kept out"] < 0.1 and reached["training, RTX 4090"] < 0.12
    assert reached["training, kept out"] > reached["training, RTX 4090"]  # and the page says so


def test_tables_that_are_kept_out_have_a_recent_torch_and_another_card():
    out = [table for table in rows.TABLES.values() if table.held_out]
    assert any(table.training and float(table.torch) >= 2 for table in out)
    chosen_by = {table.gpu for table in rows.TABLES.values() if not table.held_out}
    assert any(table.gpu not in chosen_by for table in out if not table.training)


def row_of(table, model):
    return next(row for row in rows.rows() if row.table == table and row.model == model)


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
@pytest.mark.parametrize(("model", "make"), [("vgg16", vision.vgg16), ("resnet50", vision.resnet50)])
def test_the_clock_still_gives_the_stored_time(model, make):
    """With models of the same shape that need no timm."""
    row = row_of("infer-amp-nhwc-pt240-cu124-rtx3090", model)
    table = rows.TABLES[row.table]
    with labkit.simulated_gpu(table.gpu, total_memory=rows.MEMORY):
        network = make().cuda().to(memory_format=torch.channels_last)
        images = torch.empty(row.batch, 3, row.size, row.size, device="cuda")
        step = rows._inference(network, images.contiguous(memory_format=torch.channels_last))
        step()
        with labkit.stopwatch() as timing:
            step()
    assert timing.seconds == pytest.approx(page.stored()[row.name], rel=0.03)
