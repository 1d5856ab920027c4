import io

from trainings import idle_training

from trainer.loop.console import Console, bar, logged

LINE = {"step": 10, "epoch": 0, "loss": 2.38123, "lr": 0.0099, "samples_per_s": 1234.4}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_of_the_log():
    assert logged(LINE, 140) == "step 10/140  loss 2.381  lr 0.0099  1234 samples/s"
    assert logged(LINE | {"samples_per_s": 3.14159}, None) == "step 10  loss 2.381  lr 0.0099  3.14 samples/s"


def test_without_a_terminal_there_are_lines_and_no_bar():
    lines, screen = io.StringIO(), io.StringIO()
    console, training = Console(lines, screen), idle_training(step=10, total_steps=140)
    console.on_step(training)
    console.on_log(training, LINE)
    console.on_validation(training, {"val_loss": 0.5, "val_accuracy": 0.97123})
    console.on_end(training)
    assert lines.getvalue().splitlines() == [
        "step 10/140  loss 2.381  lr 0.0099  1234 samples/s",
        "step 10/140  val_loss 0.5  val_accuracy 0.9712",
    ]
    assert screen.getvalue() == ""


def test_on_a_terminal_a_bar_is_drawn_not_at_every_step_and_wiped_before_a_line():
    lines, screen, now = io.StringIO(), Terminal(), [0.0]
    console = Console(lines, screen, clock=lambda: now[0])
    for step, at in ((1, 10.0), (2, 10.01), (3, 10.5)):
        now[0] = at
        console.on_step(idle_training(step=step, total_steps=4))
    drawn = screen.getvalue().split("\r\x1b[K")[1:]
    assert [text.split()[1] for text in drawn] == ["1/4", "3/4"]
    console.say("hello")
    assert screen.getvalue().endswith("\r\x1b[K")
    assert lines.getvalue() == "hello\n"


def test_the_bar_is_full_at_the_end_and_has_no_end_where_there_is_none():
    assert bar(70, 140) == "[###############...............] 70/140"
    assert bar(140, 140).count("#") == 30
    assert bar(3, None) == "step 3"
