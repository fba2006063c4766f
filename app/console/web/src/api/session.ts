import { CONSOLE_HEADERS } from "./client";
import { ApiError, UnreachableError, errorOf } from "./error";

const URL = "/console/session";

/** Begin a session. The server answers with a cookie that scripts cannot read. */
export async function signIn(key: string): Promise<void> {
  await call("POST", JSON.stringify({ key }));
}

/** End the session on the server. One that has ended already is no error. */
export async function signOut(): Promise<void> {
  try {
    await call("DELETE");
  } catch (error) {
    if (!(error instanceof ApiError && error.isSignedOut)) throw error;
  }
}

async function call(method: string, body?: string): Promise<void> {
  const headers = { ...CONSOLE_HEADERS, "content-type": "application/json" };
  const response = await fetch(URL, { method, body, headers }).catch(() => {
    throw new UnreachableError();
  });
  if (!response.ok) throw await errorOf(response);
}
