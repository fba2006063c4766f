import { type QueryClient, useQuery } from "@tanstack/react-query";
import { type ReactNode, createContext, use } from "react";
import { type Schemas, api, body } from "./api/client";
import { ApiError } from "./api/error";
import { signOut } from "./api/session";
import { Loading } from "./components/loaded";
import { ErrorNotice } from "./components/error-notice";
import { setOwnTenant } from "./lib/own-paths";
import { SignIn } from "./pages/sign-in";
import { ME, forgetSession } from "./session-cache";

export interface Me {
  key: Schemas["Key"];
  server: Schemas["ServerFacts"];
}

interface Session extends Me {
  isPlatform: boolean;
  can: (scope: string) => boolean;
}

const SessionContext = createContext<Session | null>(null);

/** The signed-in key and what it may do. */
export function useMe(): Session {
  const session = use(SessionContext);
  if (session === null) throw new Error("useMe outside of a session");
  return session;
}

/** Show the sign-in page until there is a session, and again when it has ended. */
export function SessionGate({ children }: { children: ReactNode }) {
  const query = useQuery({ queryKey: ME, queryFn: fetchMe, staleTime: Infinity });
  if (query.data === undefined) {
    if (query.error === null) return <Loading />;
    return (
      <main id="content" className="narrow">
        <h1>Tenora</h1>
        <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
      </main>
    );
  }
  if (query.data === null) return <SignIn />;
  return <SessionContext value={sessionOf(query.data)}>{children}</SessionContext>;
}

async function fetchMe(): Promise<Me | null> {
  try {
    const [key, server] = await Promise.all([body(api.GET("/v1/key")), body(api.GET("/v1/server"))]);
    setOwnTenant(key.tenant);
    return { key, server };
  } catch (error) {
    if (error instanceof ApiError && error.isSignedOut) return null;
    throw error;
  }
}

function sessionOf(me: Me): Session {
  const scopes = new Set<string>(me.key.scopes);
  const isPlatform = me.key.tenant === null;
  const all = isPlatform && scopes.has("admin");
  return { ...me, isPlatform, can: (scope) => all || scopes.has(scope) };
}

/** End the session on the server, and forget everything that this page has loaded. */
export async function endSession(client: QueryClient): Promise<void> {
  await signOut();
  forgetSession(client);
}
