import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { ActionDialog } from "./action-dialog";
import { CreateKeyDialog } from "./create-key-dialog";
import { Empty } from "./empty";
import { KeyTable } from "./key-table";
import { NewKeyDialog } from "./new-key-dialog";
import { type PageOf, Paged, usePages } from "./paged";
import { ErrorNotice } from "./error-notice";
import { IN_KEYS, SearchFields, type Sort } from "./search-fields";
import { useDebounced } from "../lib/debounced";

type Key = Schemas["Key"];
type NewKey = Schemas["NewKey"];

/** Search, order and position of a list of keys. */
export interface KeyQuery {
  cursor: string | undefined;
  q: string | undefined;
  sort: Sort;
}

/** Calls on one owner's keys: a tenant's by itself or by the platform, or the platform's. */
export interface KeyCalls {
  queryKey: readonly unknown[];
  list: (query: KeyQuery) => Promise<PageOf<Key>>;
  create: (body: Schemas["KeyCreate"]) => Promise<NewKey>;
  revoke: (id: string) => Promise<unknown>;
  /** Absent where the caller may not rotate keys. */
  rotate?: (id: string) => Promise<NewKey>;
  scopes: readonly string[];
  command: string;
}

/** List of keys, with the dialogs that create, rotate and revoke them. */
export function KeyManager({ calls }: { calls: KeyCalls }) {
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const [shown, setShown] = useState<NewKey | null>(null);
  const [text, setText] = useState("");
  const [sort, setSort] = useState<Sort>("-created");
  const search = { q: useDebounced(text.trim()) || undefined, sort };
  const query = usePages(["keys", ...calls.queryKey, search], (cursor) => calls.list({ ...search, cursor }));
  const rotate = useMutation({
    mutationFn: (id: string) => calls.rotate?.(id) ?? Promise.reject(),
    onSuccess: setShown,
  });

  return (
    <>
      <p>
        <button type="button" className="primary" onClick={() => setCreating(true)}>
          Create a key…
        </button>
      </p>
      <search className="fields" aria-label="Search in keys">
        <SearchFields {...IN_KEYS} text={text} onText={setText} sort={sort} onSort={setSort} />
      </search>
      {rotate.error !== null && <ErrorNotice error={rotate.error} />}
      <Paged query={query}>
        {(keys) =>
          keys.length === 0 && search.q !== undefined ? (
            <p className="quiet">No such key.</p>
          ) : keys.length === 0 ? (
            <Empty title="No keys" command={calls.command}>
              <p>Create the first key. It is shown once.</p>
            </Empty>
          ) : (
            <KeyTable keys={keys} onRevoke={setRevoking} onRotate={calls.rotate && ((key) => rotate.mutate(key.id))} />
          )
        }
      </Paged>
      {creating && <CreateKeyDialog calls={calls} onCreated={setShown} onClose={() => setCreating(false)} />}
      {shown !== null && <NewKeyDialog created={shown} onClose={() => setShown(null)} />}
      {revoking !== null && (
        <ActionDialog
          title={`Revoke ${revoking.name}`}
          submit="Revoke the key"
          confirm={revoking.name}
          action={() => calls.revoke(revoking.id)}
          onClose={() => setRevoking(null)}
        >
          <p>
            The key <code>{revoking.id}</code> stops working within a second on every server. Its running answers, event
            feeds and console sessions end.
          </p>
        </ActionDialog>
      )}
    </>
  );
}
