// What one can do to a run from here, where the board was started with --actions. Each says what it will do, and asks.
import { button, h, prose } from "../parts/dom.js";
import { act, boardHere } from "../parts/data.js";
import { openDialog } from "../parts/help.js";

export function actionsPart(row, { say }) {
  const place = h("div", { class: "actions" });
  boardHere().then((board) => {
    if (!board.actions) return;
    place.append(
      row.ended ? button("resume", () => confirm(row, "resume", {}, say)) : button("cancel", () => confirm(row, "cancel", {}, say), { class: "danger" }),
      button("tags", () => write(row, "tag", "Tags, with spaces between them", (row.tags ?? []).join(" "), tagsBody, say)),
      button("note", () => write(row, "note", "Note", row.note, (text) => ({ text }), say)));
  }, (error) => say(error.message));
  return place;
}

function tagsBody(text, row) {
  const wanted = text.split(/\s+/).filter(Boolean);
  const had = row.tags ?? [];
  return { add: wanted.filter((tag) => !had.includes(tag)), remove: had.filter((tag) => !wanted.includes(tag)) };
}

// Asks the server what it would do, shows that, and does it when the person says so.
async function confirm(row, action, body, say) {
  try {
    const { said } = await act(row.id, action, { ...body, dry: true });
    const yes = button(`${action} ${row.id}`, async () => {
      yes.disabled = true;
      try {
        say((await act(row.id, action, body)).said);
      } catch (error) {
        say(error.message);
      }
      dialog.close();
    }, { class: action === "cancel" ? "danger" : "primary" });
    const dialog = openDialog(`${action}: ${row.called || row.id}`, [h("p", { class: "says" }, prose(said))], [yes]);
  } catch (error) {
    say(error.message);
  }
}

function write(row, action, label, text, bodyOf, say) {
  const field = h("input", { type: "text", value: text ?? "", "aria-label": label });
  const go = () => (dialog.close(), confirm(row, action, bodyOf(field.value.trim(), row), say));
  field.addEventListener("keydown", (event) => event.key === "Enter" && go());
  const dialog = openDialog(`${action}: ${row.called || row.id}`, [h("label", { class: "field" }, label, field)], [button("go on", go, { class: "primary" })]);
  field.focus();
}
