from wavetank.protocols.sessions.sequence_chart import ChartRow, draw_chart


def test_sending_is_an_arrow_and_everything_else_a_star():
    rows = [ChartRow("p", "q", "data"), ChartRow("q", "p", "stop"), ChartRow("p", "", "takes stop")]
    assert draw_chart(["p", "q"], rows).splitlines() == [
        "         p         q",
        "  1      |--data-->|",
        "  2      |<-stop---|",
        "  3      *         |  p takes stop",
    ]


def test_an_arrow_passes_the_roles_between():
    (_, row) = draw_chart(["p", "q", "s"], [ChartRow("p", "s", "note")]).splitlines()
    assert row == "  1      |--note---|-------->|"


def test_long_names_and_labels_get_room():
    text = draw_chart(["customer", "warehouse"], [ChartRow("customer", "warehouse", "a_rather_long_label")])
    header, row = text.splitlines()
    assert "customer" in header
    assert "warehouse" in header
    assert "--a_rather_long_label-->" in row


def test_an_empty_run_is_the_roles_alone():
    assert draw_chart(["p"], []) == "         p"
