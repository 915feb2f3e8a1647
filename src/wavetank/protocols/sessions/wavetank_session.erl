%% What all generated roles share: tags, the stale-message rule, and the inbox.
%%
%% A tag lists marks {Mix, First, Last, Side}: turns First to Last of a mix all went to Side, left or right.
-module(wavetank_session).

-export([new/2, send/5, arrived/2, next/2, timeout/3, where/2]).
-export([relation/2, joined/2, switched/3, begun/3]).

new(Role, Options) ->
    #{role => Role, tag => [], inbox => [],
      send => maps:get(send, Options, fun(_, _) -> ok end),
      notify => maps:get(notify, Options, fun(_) -> ok end),
      timeouts => maps:get(timeouts, Options, #{})}.

where(State, #{tag := Tag, inbox := Inbox}) -> {State, Tag, length(Inbox)}.

send(To, Label, Payload, Settles, #{role := Role, tag := Tag, send := Send} = Data) ->
    New = case Settles of
              none -> Tag;
              {Mix, Side} -> begun(Tag, Mix, Side)
          end,
    Send(To, {frame, Role, Label, Payload, New}),
    Data#{tag := New}.

arrived(Frame, #{inbox := Inbox} = Data) -> Data#{inbox := Inbox ++ [Frame]}.

timeout(Mix, To, #{timeouts := Timeouts}) ->
    case Timeouts of
        #{Mix := {Milliseconds, Label, Payload}} -> [{state_timeout, Milliseconds, {send, To, Label, Payload}}];
        _ -> []
    end.

%% The first waiting message that something can be done with; for each sender in order.
next(Expected, #{inbox := Inbox} = Data) -> look(Inbox, [], [], Expected, Data).

look([], _, _, _, Data) -> {none, Data};
look([{frame, From, Label, Payload, Theirs} = Frame | Rest], Before, Held, Expected,
     #{tag := Mine, inbox := Inbox, notify := Notify} = Data) ->
    case lists:member(From, Held) of
        true ->
            look(Rest, [Frame | Before], Held, Expected, Data);
        false ->
            case relation(Mine, Theirs) of
                {stale, _, _} ->
                    Notify({dropped, From, Label, Payload, Theirs}),
                    next(Expected, Data#{inbox := lists:reverse(Before, Rest)});
                {overrides, Mix, Turn} ->
                    Notify({switched, From, Label, Payload, Theirs}),
                    {switch, Mix, Data#{tag := switched(Mine, Mix, Turn)}};
                _ ->
                    case [Through || {F, L, Through} <- Expected, F =:= From, L =:= Label,
                                     passes(Mine, Theirs, Through)] =/= [] of
                        true ->
                            Notify({taken, From, Label, Payload, Theirs}),
                            {take, From, Label,
                             Data#{inbox := lists:reverse(Before, Rest), tag := joined(Mine, Theirs)}};
                        false ->
                            case lists:any(fun({frame, _, _, _, Tag}) -> voids(Tag, Theirs) end, Inbox) of
                                true ->
                                    Notify({dropped, From, Label, Payload, Theirs}),
                                    next(Expected, Data#{inbox := lists:reverse(Before, Rest)});
                                false ->
                                    look(Rest, [Frame | Before], [From | Held], Expected, Data)
                            end
                    end
            end
    end.

%% fits, ahead, {stale, Mix, Turn} or {overrides, Mix, Turn}.
relation(Same, Same) -> fits;
relation(Mine, Theirs) -> relation(Mine, Theirs, fits).

relation(_, [], Found) -> Found;
relation(Mine, [{Mix, First, Last, Side} | Rest], Found) ->
    Differing = [{Own, Turn} || {M, F, L, Own} <- Mine, M =:= Mix, Own =/= Side,
                                Turn <- [max(F, First)], Turn =< min(L, Last)],
    case Differing of
        [{right, Turn} | _] -> {stale, Mix, Turn};
        [{left, Turn} | _] -> {overrides, Mix, Turn};
        [] ->
            case Last > turns(Mine, Mix) of
                true -> relation(Mine, Rest, ahead);
                false -> relation(Mine, Rest, Found)
            end
    end.

%% Whether a message can be the one that is waited for: what its tag says of the next turn of each mix on the way to
%% it must be the side on which it stands.
passes(Mine, Theirs, Through) ->
    lists:all(fun({Mix, Side}) ->
                      Turn = turns(Mine, Mix) + 1,
                      lists:all(fun({M, F, L, S}) -> M =/= Mix orelse Turn < F orelse Turn > L orelse S =:= Side end,
                                Theirs)
              end, Through).

%% Whether a tag shows that another comes from a left side that was given up.
voids(One, Other) -> is_tuple(relation(One, Other)) andalso element(1, relation(One, Other)) =:= stale.

turns(Tag, Mix) -> lists:max([0 | [Last || {M, _, Last, _} <- Tag, M =:= Mix]]).

joined(Mine, Theirs) ->
    News = [{Mix, max(First, turns(Mine, Mix) + 1), Last, Side}
            || {Mix, First, Last, Side} <- Theirs, Last > turns(Mine, Mix)],
    together(Mine, News).

switched(Mine, Mix, Turn) ->
    together(cut(Mine, Mix, Turn), [{Mix, Turn, Turn, right}]).

cut([], _, _) -> [];
cut([{Mix, First, Last, _} | _], Mix, Turn) when First =:= Turn, Turn =< Last -> [];
cut([{Mix, First, Last, Side} | _], Mix, Turn) when First < Turn, Turn =< Last -> [{Mix, First, Turn - 1, Side}];
cut([Mark | Rest], Mix, Turn) -> [Mark | cut(Rest, Mix, Turn)].

begun(Mine, Mix, Side) ->
    Turn = turns(Mine, Mix) + 1,
    together(Mine, [{Mix, Turn, Turn, Side}]).

together(Tag, []) -> Tag;
together(Tag, [{Mix, First, Last, Side} = Mark | Rest]) ->
    New = case lists:reverse(Tag) of
              [{Mix, Start, End, Side} | Before] when End + 1 =:= First ->
                  lists:reverse([{Mix, Start, Last, Side} | Before]);
              _ -> Tag ++ [Mark]
          end,
    together(New, Rest).
