import { api } from "./client";
import { ApiError } from "./error";

/** Begin a session with an API key. The server answers with a cookie that scripts cannot read. */
export async function signIn(key: string): Promise<void> {
  await api.POST("/v1/session", { headers: { authorization: `Bearer ${key}` } });
}

/** End the session on the server. One that has ended already is no error. */
export async function signOut(): Promise<void> {
  try {
    await api.DELETE("/v1/session");
  } catch (error) {
    if (!(error instanceof ApiError && error.isSignedOut)) throw error;
  }
}
