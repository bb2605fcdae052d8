use super::*;

/// Error of every logit of the other side.
const ERROR: f32 = 0.01;

/// A generation of one forward over `rows`, that commits what `commits` says; errors alternate in sign.
fn trace(rows: &[[f32; 4]], error: f32, commits: &[(usize, i32)]) -> Trace {
    let predict = |(pos, row): (usize, &[f32; 4])| {
        let best = (0..4).max_by(|&a: &usize, &b| row[a].total_cmp(&row[b]));
        let signs = [1.0, -1.0, 1.0, -1.0];
        let logits = row.iter().zip(signs).map(|(x, sign)| x + sign * error);
        Predicted {
            pos,
            token: i32::try_from(best.expect("four")).expect("small"),
            probe: None,
            logits: logits.collect(),
        }
    };
    let mut canvas = vec![(-1, 0); rows.len()];
    for &(pos, token) in commits {
        canvas[pos] = (token, 2);
    }
    Trace {
        thresholds: vec![0.6, 0.9],
        ends: vec![3],
        output: canvas.iter().map(|&(token, _)| token).collect(),
        forwards: vec![Forward {
            plan: 1,
            predictions: rows.iter().enumerate().map(predict).collect(),
            canvas,
        }],
    }
}

fn is_near(host: &Trace, other: &Trace) -> bool {
    is_near_by(Ties::All, host, other)
}

fn is_near_by(ties: Ties, host: &Trace, other: &Trace) -> bool {
    let difference = compare(host, other, ties).expect("the texts differ");
    println!("{}", difference.what);
    difference.is_near_tie
}

/// A row that nothing is decided about.
const FAR: [f32; 4] = [9.0, 0.0, 0.0, 0.0];

#[test]
fn equal_texts_are_not_looked_at() {
    let host = trace(&[FAR], 0.0, &[(0, 0)]);
    let mut other = trace(&[FAR], 5.0, &[(0, 0)]);
    other.forwards[0].plan = 2;
    assert_eq!(compare(&host, &other, Ties::All), None);
}

#[test]
fn tokens_that_are_close_are_a_near_tie_and_others_are_not() {
    // Sides are a little more and a little less than three errors apart.
    for (gap, near) in [(0.029, true), (0.031, false)] {
        let mut host = trace(&[FAR, [4.0, 4.0 - gap, 0.0, 0.0]], 0.0, &[(1, 0)]);
        let mut other = trace(&[FAR, [4.0, 4.0 - gap, 0.0, 0.0]], ERROR, &[(1, 1)]);
        other.forwards[0].predictions[1].token = 1;
        assert_eq!(is_near(&host, &other), near, "{gap}");
        // The same in a later forward, after one that decided nothing otherwise.
        for trace in [&mut host, &mut other] {
            let mut first = trace.forwards[0].clone();
            first.canvas.fill((-1, 0));
            trace.forwards.insert(0, first);
        }
        assert_eq!(is_near(&host, &other), near, "{gap}");
    }
}

#[test]
fn a_token_that_was_drawn_against_the_logits_is_no_near_tie_by_that() {
    for (gap, near) in [(0.02, true), (3.0, false)] {
        let row = [4.0 - gap, 4.0, 0.0, 0.0];
        let host = trace(&[FAR, row], 0.0, &[(1, 0)]);
        let mut host_drew = host.clone();
        host_drew.forwards[0].predictions[1].token = 0;
        let other = trace(&[FAR, row], ERROR, &[(1, 1)]);
        assert_eq!(is_near(&host_drew, &other), near, "{gap}");
    }
}

#[test]
fn one_wrong_row_does_not_excuse_itself() {
    // Its own error is as large as the gap, and by far the largest of all.
    let rows: Vec<_> = std::iter::repeat_n([20.0, 0.0, 0.0, 0.0], 40).collect();
    let host = trace(&rows, 0.0, &[(0, 0)]);
    let mut other = trace(&rows, ERROR, &[(0, 1)]);
    let wrong = &mut other.forwards[0].predictions[0];
    wrong.token = 1;
    wrong.logits = vec![19.9, 20.0, 0.0, 0.0];
    assert!(!is_near(&host, &other));
    // Nor do logits that are wrong everywhere.
    let close = [[20.0, 19.9, 0.0, 0.0]; 4];
    let host = trace(&close, 0.0, &[(0, 0)]);
    let mut other = trace(&close, 0.5, &[(0, 1)]);
    other.forwards[0].predictions[0].token = 1;
    assert!(!is_near(&host, &other));
}

/// A row whose best token leads by so much: the other two do not count.
fn leading_by(lead: f32) -> [f32; 4] {
    let half = lead / 2.0;
    [half, -half, -60.0, -60.0]
}

#[test]
fn thresholds_are_compared_as_leads() {
    let row = leading_by;
    let at = 9.0_f32.ln();
    for (above, near) in [(0.01, true), (0.04, false)] {
        let mut rows = vec![FAR; 60];
        rows[1] = row(at + above);
        let host = trace(&rows, 0.0, &[(1, 0)]);
        // It falls below the threshold, whatever its error.
        let mut other = trace(&rows, ERROR, &[]);
        other.forwards[0].predictions[1].logits = row(at - 0.02).to_vec();
        assert_eq!(is_near(&host, &other), near, "{above}");
    }
    // Both sides reach every threshold, or none: the difference has no reason.
    let host = trace(&[FAR, row(at + 0.01)], 0.0, &[(1, 0)]);
    let other = trace(&[FAR, row(at + 0.01)], ERROR / 4.0, &[]);
    assert!(!is_near(&host, &other));
}

#[test]
fn the_most_confident_of_two_positions_is_a_decision() {
    for (gap, near) in [(0.02, true), (0.1, false)] {
        // The error of one row does not count for much among many.
        let mut rows = vec![FAR; 60];
        rows[1] = [0.3, 0.0, 0.0, 0.0];
        rows[2] = [0.3 - gap, 0.0, 0.0, 0.0];
        let host = trace(&rows, 0.0, &[(1, 0)]);
        let mut other = trace(&rows, ERROR, &[(2, 0)]);
        other.forwards[0].predictions[2].logits[0] += 2.0 * gap;
        assert_eq!(is_near(&host, &other), near, "{gap}");
    }
}

#[test]
fn where_tokens_are_all_that_is_decided_nothing_else_is_a_near_tie() {
    // What reaches a threshold, in the one row that there is.
    let at = 9.0_f32.ln();
    let host = trace(&[leading_by(at + 0.01)], 0.0, &[(0, 0)]);
    let mut other = trace(&[leading_by(at - 0.02)], 0.0, &[]);
    assert!(is_near_by(Ties::All, &host, &other));
    assert!(!is_near_by(Ties::Tokens, &host, &other));
    // Which token.
    for (gap, near) in [(0.029, true), (0.031, false)] {
        let row = [4.0, 4.0 - gap, 0.0, 0.0];
        let host = trace(&[row], 0.0, &[(0, 0)]);
        other = trace(&[row], ERROR, &[(0, 1)]);
        other.forwards[0].predictions[0].token = 1;
        assert_eq!(is_near_by(Ties::Tokens, &host, &other), near, "{gap}");
    }
    // With a second position, which of them is decided about is a decision, too.
    let row = [4.0, 3.99, 0.0, 0.0];
    let host = trace(&[row, FAR], 0.0, &[(0, 0)]);
    other = trace(&[row, FAR], ERROR, &[(0, 1)]);
    other.forwards[0].predictions[0].token = 1;
    assert!(is_near_by(Ties::All, &host, &other));
    assert!(!is_near_by(Ties::Tokens, &host, &other));
}

#[test]
fn what_is_right_of_an_end_that_is_a_near_tie_is_explained() {
    let rows = [[4.0, 0.0, 0.0, 3.99], FAR];
    let host = trace(&rows, 0.0, &[(0, 0), (1, 0)]);
    let mut other = trace(&rows, ERROR, &[(0, 3)]);
    other.forwards[0].predictions[0].token = 3;
    assert!(is_near(&host, &other));
    // Without the end token it is not.
    let mut other = trace(&rows, ERROR, &[(0, 2)]);
    other.forwards[0].predictions[0].token = 2;
    assert!(!is_near(&host, &other));
}

#[test]
fn other_plans_and_other_texts_without_a_decision_are_errors() {
    let host = trace(&[FAR], 0.0, &[(0, 0)]);
    let mut other = trace(&[FAR], ERROR, &[(0, 0)]);
    other.output = vec![7];
    assert!(!is_near(&host, &other));
    other.forwards[0].plan = 2;
    assert!(!is_near(&host, &other));
    // A position that nothing predicted.
    let mut other = trace(&[FAR], ERROR, &[]);
    other.forwards[0].predictions.clear();
    assert!(!is_near(&host, &other));
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let written = trace(&[FAR, FAR], 0.5, &[(0, 0)]);
    written.write(&dir.path().join("0"));
    assert_eq!(Trace::read(&dir.path().join("0")), written);
}
