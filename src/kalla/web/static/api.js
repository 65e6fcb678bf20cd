// Requests to the API, and the message when one fails.

export async function ask(method, path, body, signal) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json", "Idempotency-Key": key() }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not answer. What you typed is still here: try again in a moment.");
  }
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  throw refusal(answer.status, found);
}

export function refusal(status, found) {
  if (status === 401) return new Error("The login has expired: log in again in another tab, then go on here.");
  const error = new Error(sentence(found.detail || found.title || `The server answered ${status}.`));
  error.problems = found.errors || [];
  error.status = status;
  return error;
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// crypto.randomUUID is for https and localhost only.
function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function say(element, text, bad = false) {
  element.textContent = text;
  element.dataset.state = bad ? "bad" : "";
}

export function percent(rate) {
  const shown = (rate * 100).toFixed(1);
  return `${rate < 1 && shown === "100.0" ? "99.9" : shown} %`; // 100 means all and nothing less
}
