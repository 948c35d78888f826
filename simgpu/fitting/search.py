"""The search for the largest number that fits, with few runs."""


class Search:
    """Searches for the largest number that fits: run `guess`, pass the result to `tell`, and stop when `done`.

    Then `good` fits and the number after it does not. `bad`: a number that is known not to fit, or an upper limit. The
    need is assumed to grow about linearly with the number. So the next guess is where a straight line reaches the
    limit, and the one after it a hundredth to the other side. From then on every second guess is halfway. After the
    first guess alone, `grows` gives the slope.
    """

    def __init__(self, guess: int, bad: int):
        self.guess, self.good, self.bad = max(1, min(guess, bad - 1)), 0, bad
        self._end = bad
        self._points: dict[int, int] = {}
        self._flat = 0  # the part of the first guess's need that does not grow
        self._tries = 0  # tries since both ends are known

    @property
    def done(self) -> bool:
        """Returns whether the answer is known."""
        return self.bad - self.good <= 1

    def tell(self, fits: bool, needs: int, grows: int, limit: int) -> None:
        """Takes the result of the guess: whether it fits, and the bytes it needs of the limit.

        `grows`: bytes of the need that are known to grow with the number, or 0.
        """
        self._points[self.guess] = needs
        if len(self._points) == 1:
            self._flat = needs - grows
        self.good, self.bad = (self.guess, self.bad) if fits else (self.good, self.guess)
        if not self.done:
            self.guess = max(self.good + 1, min(self._next(fits, limit), self.bad - 1))

    def _next(self, fits: bool, limit: int) -> int:
        line = self._line(limit)
        if self.bad == self._end:
            return max(min(line, 16 * self.good), self.good + 1 + self.good // 64) if line else 8 * self.good
        if self.good == 0:
            return min(line, self.bad // 2) if line else self.bad // 8
        self._tries += 1
        if self._tries == 2:
            return self.good + 1 + self.good // 100 if fits else self.bad - 1 - self.bad // 100
        return line if self._tries % 2 and line else (self.good + self.bad) // 2

    def _line(self, limit: int) -> int:
        """Returns where the line through the two points next to the limit reaches it; 0 if that line does not exist."""
        known = sorted(self._points.items())
        below = [point for point in known if point[0] <= self.good][-2:]
        above = [point for point in known if point[0] >= self.bad][:1]
        pair = [*below, *above][-2:]
        pair = [(0, self._flat), *pair] if len(pair) == 1 else pair
        if len(pair) < 2 or pair[1][1] <= pair[0][1]:
            return 0
        (one, need_one), (other, need_other) = pair
        return one + (limit - need_one) * (other - one) // (need_other - need_one)
