"""What every kernel of the tests runs first (PYTHONSTARTUP, set by conftest.py).

Python's collector passes over what is there after the first cell, which imports labkit and torch: to look through the
objects of every module again and again takes a tenth of a chapter's time, and there is nothing to collect among them.
"""


def _set_aside():
    import gc

    from IPython import get_ipython

    def after_the_first_cell(_):
        gc.freeze()
        gc.enable()
        events.unregister("post_run_cell", after_the_first_cell)

    gc.disable()
    events = get_ipython().events
    events.register("post_run_cell", after_the_first_cell)


_set_aside()
del _set_aside
