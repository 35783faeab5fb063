// The page: an input is drawn, picked or clicked, sent to /v1/predict, and what comes back is shown.
// Text only ever enters as text, and nothing is asked of another host.

const $ = (id) => document.getElementById(id);
const WORDS = {
  in_distribution: "In distribution",
  ambiguous: "Ambiguous",
  out_of_distribution: "Out of distribution",
  invalid: "Invalid",
};
const MOST_ROWS = 50, MOST_CLASSES = 12;

let about; // what /page/about says
let last = null, drifted = null; // what is shown
let asked = 0; // inputs so far: the answer to an earlier one does not replace that to a later one
const evidence = []; // of drift, its common logarithm after each input

// Elements

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

const fixed = (value) => value.toFixed(2).replace("-", "−");
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(share < 0.1 && share >= 0.0005 ? 1 : 0)} %`);
const choice = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`);

// The server

async function ask(path, options = {}) {
  const token = sessionStorage.getItem("ddu-token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${encoded(token)}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await askForToken(token !== null);
    return ask(path, options);
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error ?? `The server answered ${answer.status}.`);
  return content;
}

// A header has bytes; letters beyond ASCII are sent as the bytes of UTF-8, as other clients send them
const encoded = (text) => String.fromCharCode(...new TextEncoder().encode(text));

let waiting = null; // one dialog for all requests that wait for a token
function askForToken(isWrong) {
  sessionStorage.removeItem("ddu-token");
  if (isWrong) $("token-words").textContent = "That token is not the right one.";
  waiting ??= new Promise((resolve) => {
    $("token-dialog").showModal();
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("ddu-token", $("token").value);
      $("token").value = "";
      $("token-dialog").close();
      waiting = null;
      resolve();
    };
    $("token-dialog").oncancel = (event) => event.preventDefault();
  });
  return waiting;
}

// Judging

/** Judges an image, {blob}, or numbers, {vector}. */
async function judge(input) {
  const turn = ++asked;
  const request = input.blob
    ? { method: "POST", headers: { "Content-Type": input.blob.type || "application/octet-stream" }, body: input.blob }
    : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ inputs: [input.vector] }) };
  $("error").hidden = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    const [answer, near] = await Promise.all([
      ask("v1/predict", request),
      about.examples ? ask("page/nearest", request) : { nearest: [] },
    ]);
    const judged = { ...answer.predictions[0], nearest: near.nearest, picture: input.blob && URL.createObjectURL(input.blob), vector: input.vector };
    const drift = about.drift ? await ask("v1/drift") : null;
    if (turn === asked) {
      show(judged);
      $("result").scrollIntoView({ block: "nearest" });
    }
    list(judged, drift);
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  } finally {
    document.body.removeAttribute("aria-busy");
  }
}

function show(judged) {
  last = judged;
  const answer = element("div", { className: `answer ${judged.verdict ?? ""}` });
  answer.append(
    judged.picture ? element("img", { src: judged.picture, alt: "The input" }) : element("code", { textContent: judged.vector.map((x) => number(x)).join(", ") }),
    element("div", {}, element("strong", { id: "verdict-word", textContent: WORDS[judged.verdict] ?? "Not calibrated" }), ...sentences(judged)),
  );
  $("verdict").replaceChildren(answer);
  $("details").hidden = judged.verdict === "invalid";
  if (judged.verdict === "invalid") return;
  showClasses(judged);
  showParts(judged.parts);
  showHistogram(judged);
  showNearest(judged.nearest);
}

function sentences(judged) {
  if (judged.verdict === "invalid") return [element("p", { textContent: `It cannot be judged: ${judged.reason}.` })];
  const { p_value: limit, entropy } = about.thresholds;
  const several = judged.candidates?.length > 1;
  const meaning = {
    ambiguous: `${several ? `It could be ${choice(judged.candidates)}` : "No class is clear"}: the entropy ${number(judged.aleatoric)} is above ${number(entropy)}.`,
    out_of_distribution: `It is unlike the training data: the prediction, ${judged.label}, means nothing.`,
  }[judged.verdict] ?? `Predicted: ${judged.label}, with a probability of ${percent(judged.confidence)}.`;
  const found = [element("p", { textContent: meaning })];
  if (judged.p_value !== undefined)
    found.push(element("p", { className: "note", textContent: `${percent(judged.p_value)} of known inputs would look at least as unknown: p-value ${number(judged.p_value)}, and ${number(limit)} or less is out of distribution.` }));
  return found;
}

function bar(name, share, value, { row = "", kind = "" } = {}) {
  const filled = element("span", { className: `bar ${kind}` });
  filled.style.setProperty("--share", share);
  return element("li", { className: row }, element("span", { className: "name", textContent: name, title: name }), element("span", { className: "track", ariaHidden: "true" }, filled), element("span", { className: "value", textContent: value }));
}

function showClasses({ probs, candidates }) {
  const fit = new Set(candidates ?? []);
  let classes = Object.entries(probs);
  if (classes.length > MOST_CLASSES) classes = classes.sort((a, b) => b[1] - a[1]).slice(0, MOST_CLASSES);
  $("probs").replaceChildren(...classes.map(([name, p]) => bar(name, p, percent(p), { row: fit.has(name) ? "candidate" : "" })));
  $("candidates").textContent = candidates ? `Candidates: ${candidates.join(", ")}.` : "";
}

function showParts(parts) {
  $("parts-section").hidden = !parts;
  if (!parts) return;
  const largest = Math.max(3, ...Object.values(parts).map(Math.abs));
  $("parts").replaceChildren(...Object.entries(parts).map(([name, value]) => bar(name, Math.abs(value) / largest, fixed(value), { kind: value < 0 ? "less" : "more" })));
}

function showNearest(nearest) {
  $("nearest-section").hidden = !nearest.length;
  $("nearest").replaceChildren(...nearest.map(({ word, image, vector, distance }) =>
    element("li", {}, image ? element("img", { src: image, alt: "" }) : element("code", { textContent: vector.map((x) => number(x, 2)).join(", ") }), element("div", { textContent: word }), element("div", { className: "note", textContent: number(distance) }))));
}

// The histogram: a line of steps for each set, the threshold, and where the input falls

function showHistogram({ epistemic, verdict }) {
  $("histogram-section").hidden = !about.histograms;
  if (!about.histograms) return;
  const { edges, sets } = about.histograms;
  const [width, height, top, bottom] = [$("histogram").clientWidth, 220, 26, 24];
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => (width * (Math.min(Math.max(value, low), high) - low)) / (high - low);
  // Bars of what lies beyond the axis may be cut, so that the others can be seen
  const tallest = Math.max(...sets.flatMap((set) => set.shares.slice(1, -1)));
  const y = (share) => height - bottom - (height - top - bottom) * Math.min(1, share / (1.08 * tallest));
  const steps = (shares) => shares.map((share, i) => `H${x(edges[i])}V${y(share)}H${x(edges[i + 1])}`).join("");
  const drawing = svg("svg", { height, role: "img", class: verdict ?? "" });
  for (const [i, set] of sets.entries())
    drawing.append(svg("path", { class: `set set-${Math.min(i, 5)}`, d: `M0 ${y(0)}${steps(set.shares)}V${y(0)}Z` }));
  drawing.append(svg("line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) }));
  const threshold = about.thresholds.epistemic;
  const words = (text, at, height, anchor, kind = "") => drawing.append(svg("text", { x: at, y: height, "text-anchor": anchor, class: kind }, text));
  if (threshold !== null) {
    drawing.append(svg("line", { class: "threshold", x1: x(threshold), x2: x(threshold), y1: top, y2: y(0) }));
    words(`unknown above ${number(threshold)} →`, x(threshold) + 5, height - 8, "start");
  }
  drawing.append(svg("line", { class: "here", x1: x(epistemic), x2: x(epistemic), y1: top - 6, y2: y(0) }));
  const arrow = epistemic > high ? " →" : epistemic < low ? " ←" : "";
  words(`this input: ${number(epistemic)}${arrow}`, Math.min(Math.max(x(epistemic), 70), width - 70), 14, "middle", "here");
  words(number(low), 0, height - 8, "start");
  words(`${number(high)}`, width, height - 8, "end");
  const above = sets.map((set) => `${set.name}: ${percent(shareAbove(set, edges, epistemic))}`).join(", ");
  drawing.append(svg("title", {}, `Histograms of the score. This input has ${number(epistemic)}. Inputs with at least as large a score: ${above}.`));
  const legend = sets.map((set, i) => element("li", { className: `set-${Math.min(i, 5)}`, textContent: `${set.name} (${set.count.toLocaleString("en")})` }));
  $("histogram").replaceChildren(element("ul", { className: "legend" }, ...legend), drawing);
}

function shareAbove({ shares }, edges, score) {
  return shares.reduce((sum, share, i) => sum + (edges[i + 1] >= score ? share : 0), 0);
}

// What was judged so far

function list(judged, drift) {
  const again = element("button", { type: "button", ariaLabel: `Show again: ${judged.label || "invalid"}` }, judged.picture ? element("img", { src: judged.picture, alt: "" }) : judged.vector.map((x) => number(x, 2)).join(", "));
  again.onclick = () => { asked += 1; show(judged); $("result").scrollIntoView({ block: "nearest" }); };
  const cells = [again, judged.label, WORDS[judged.verdict] ?? "–", number(judged.p_value), drift ? fixed(drift.log10_evidence) : "–"];
  const row = element("tr", { className: judged.verdict ?? "" }, ...cells.map((cell, i) => element("td", { className: i === 2 ? "tone" : "" }, cell)));
  if (evidence.length === 0) $("rows").replaceChildren();
  $("rows").prepend(row);
  for (const old of [...$("rows").children].slice(MOST_ROWS)) {
    const picture = old.querySelector("img");
    if (picture) URL.revokeObjectURL(picture.src);
    old.remove();
  }
  evidence.push(drift?.log10_evidence ?? 0);
  if (drift) showDrift(drift);
}

function showDrift(drift) {
  drifted = drift;
  const limit = -Math.log10(drift.false_alarm_rate);
  const inputs = `${drift.inputs.toLocaleString("en")} ${drift.inputs === 1 ? "input" : "inputs"}`;
  $("drift").hidden = false;
  $("drift-words").className = drift.alarm ? "alarm" : "";
  $("drift-words").textContent = drift.alarm
    ? `Drift: ${inputs} of all clients together are not like the calibration data. Alarm at input ${drift.alarm_at}, p-value ${number(drift.p_value, 2)}.`
    : `No drift among ${inputs} of all clients: p-value ${number(drift.p_value, 2)}, alarm at ${number(drift.false_alarm_rate)}.`;
  const [width, height] = [$("drift-line").clientWidth, 70];
  const values = [0, ...evidence].slice(-200);
  const high = Math.max(1.2 * limit, ...values), low = Math.min(-0.5, ...values);
  const x = (i) => (width * i) / Math.max(1, values.length - 1), y = (value) => 4 + ((height - 8) * (high - value)) / (high - low);
  $("drift-line").replaceChildren(
    svg("svg", { height, role: "img", "aria-label": `Evidence of drift, its common logarithm: ${number(values.at(-1), 2)}, alarm at ${number(limit)}` },
      svg("line", { class: "threshold", x1: 0, x2: width, y1: y(limit), y2: y(limit) }),
      svg("text", { x: 0, y: y(limit) + 13 }, "alarm"),
      svg("polyline", { class: "evidence", points: values.map((value, i) => `${x(i)},${y(value)}`).join(" ") })));
}

// Drawing, with a pointer or with keys

function drawingArea() {
  const canvas = $("canvas"), [, rows, columns] = about.shape;
  canvas.width = 280;
  canvas.height = Math.max(1, Math.round((280 * rows) / columns));
  const context = canvas.getContext("2d");
  const pen = { x: canvas.width / 2, y: canvas.height / 2, down: false };

  function clear() {
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    Object.assign(context, { strokeStyle: "#fff", lineWidth: 22, lineCap: "round", lineJoin: "round" });
  }
  function stroke(x, y) {
    context.beginPath();
    context.moveTo(pen.x, pen.y);
    context.lineTo(x, y);
    context.stroke();
  }
  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
  }
  canvas.onpointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    [pen.x, pen.y] = place(event);
    stroke(pen.x, pen.y);
    $("pen").hidden = true;
  };
  canvas.onpointermove = (event) => {
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    for (const point of event.getCoalescedEvents?.() ?? [event]) {
      const [x, y] = place(point);
      stroke(x, y);
      [pen.x, pen.y] = [x, y];
    }
  };
  canvas.onkeydown = (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (move) {
      const [x, y] = [pen.x + 10 * move[0], pen.y + 10 * move[1]];
      const [nextX, nextY] = [Math.min(Math.max(x, 0), canvas.width), Math.min(Math.max(y, 0), canvas.height)];
      if (pen.down) stroke(nextX, nextY);
      [pen.x, pen.y] = [nextX, nextY];
    } else if (event.key === " ") {
      pen.down = !pen.down;
      if (pen.down) stroke(pen.x, pen.y);
    } else if (event.key === "Enter") send();
    else if (event.key === "Delete" || event.key === "Backspace") clear();
    else return;
    event.preventDefault();
    $("pen").hidden = false;
    $("pen").className = pen.down ? "down" : "";
    $("pen").style.left = `${(100 * pen.x) / canvas.width}%`;
    $("pen").style.top = `${(100 * pen.y) / canvas.height}%`;
  };
  canvas.onblur = () => { pen.down = false; $("pen").hidden = true; };
  const send = () => canvas.toBlob((blob) => judge({ blob }), "image/png");
  $("judge").onclick = send;
  $("clear").onclick = clear;
  clear();
}

// Images that are picked, dropped or pasted

function takeImages() {
  const first = (items) => [...(items ?? [])].find((file) => file.type.startsWith("image/"));
  const take = (files) => {
    const blob = first(files);
    if (blob) judge({ blob });
    return Boolean(blob);
  };
  const takeOrRefuse = (files) => {
    if (take(files)) return;
    $("error").textContent = "That is not an image.";
    $("error").hidden = false;
  };
  $("file").onchange = () => { takeOrRefuse($("file").files); $("file").value = ""; };
  document.addEventListener("paste", (event) => { if (take(event.clipboardData?.files)) event.preventDefault(); });
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    takeOrRefuse(event.dataTransfer?.files);
  });
}

function takeNumbers() {
  $("vectors").onsubmit = (event) => {
    event.preventDefault();
    const vector = $("numbers").value.split(/[\s,;]+/).filter(Boolean).map(Number);
    judge({ vector: vector.map((x) => (Number.isFinite(x) ? x : null)) });
  };
}

// Inputs to try

function showGallery() {
  $("gallery").hidden = !Object.keys(about.gallery).length;
  for (const [name, items] of Object.entries(about.gallery)) {
    const buttons = items.map(({ word, image, vector }) => {
      const button = element("button", { type: "button", title: word, ariaLabel: `Judge: ${name}, ${word}`, className: vector ? "vector" : "" });
      button.append(image ? element("img", { src: image, alt: "" }) : vector.map((x) => number(x, 2)).join(", "));
      button.onclick = () => judge(vector ? { vector } : { blob: fromDataUri(image) });
      return element("li", {}, button);
    });
    $("gallery").append(element("h3", { textContent: name[0].toUpperCase() + name.slice(1) }), element("ul", {}, ...buttons));
  }
}

function fromDataUri(uri) {
  const bytes = Uint8Array.from(atob(uri.slice(uri.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

async function start() {
  about = await ask("page/about");
  document.title = `${about.name} · ddu`;
  $("name").textContent = about.name;
  $("about").textContent = [about.network, about.data].filter(Boolean).join(", trained on ") || "Predictions with two uncertainties and a verdict.";
  const isImage = about.shape.length === 3;
  $(isImage ? "images" : "vectors").hidden = false;
  document.querySelector("main").hidden = false;
  if (isImage) {
    drawingArea();
    takeImages();
  } else takeNumbers();
  showGallery();
  const redraw = () => {
    if (last && !$("details").hidden) showHistogram(last);
    if (drifted) showDrift(drifted);
  };
  new ResizeObserver(redraw).observe($("result"));
}

start().catch((error) => { $("about").textContent = error.message; });
