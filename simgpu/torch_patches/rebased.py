"""Recreates a class of PyTorch on a new base, so that its Python methods call simgpu's base instead of the C++ one."""

import types


def rebased(original: type, base: type) -> type:
    """Returns a class with the name and the methods of `original` on `base`; `super()` in them is `base`."""
    made = types.new_class(original.__name__, (base,))
    cell = types.CellType(made)
    for name, value in vars(original).items():
        if name not in ("__dict__", "__weakref__", "__module__"):
            setattr(made, name, _of_class(value, cell))
    made.__module__ = original.__module__
    return made


def _of_class(value, cell):
    """Returns a member of a class with the cell of `super()` replaced."""
    if isinstance(value, staticmethod):
        return staticmethod(_of_class(value.__func__, cell))
    if isinstance(value, property):
        getter, setter = (None if one is None else _of_class(one, cell) for one in (value.fget, value.fset))
        return property(getter, setter, value.fdel, value.__doc__)
    if not isinstance(value, types.FunctionType) or "__class__" not in value.__code__.co_freevars:
        return value
    closure = tuple(
        cell if name == "__class__" else old
        for name, old in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    )
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
    made.__kwdefaults__, made.__doc__ = value.__kwdefaults__, value.__doc__
    return made
